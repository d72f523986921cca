"""A run as pieces of work on tracks: rounds, clients' turns, steps, modules, spans and collectives.

A piece has a start and a duration that are never negative and lie on one clock (see `clock`). What was measured as a
duration alone is placed where it belongs: the phases of a step one after the other up to the step's end, a client's
download before its training and its upload after. The durations themselves are always the measured ones.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stethos.view.clock import ns_of, offsets_of
from stethos.view.module_layout import ModuleCall, lay_out
from stethos.view.plain import fields_of, known, printable
from stethos.view.stream import Advance, share_of, stream

if TYPE_CHECKING:
    from stethos.store.run import Run

PHASES = ("select", "download", "compute", "upload", "aggregate", "evaluate")
_STEP_PHASES = ("data", "forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class Slice:
    """One piece of work. Those that name a `caused_by` follow from the one that has it as its `cause`."""

    kind: str
    group: str
    track: str
    name: str
    start_ns: int
    duration_ns: int
    args: Mapping[str, Any] = field(default_factory=dict)
    cause: str | None = None
    caused_by: str | None = None

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


class Timeline:
    """The pieces of a run, those of one kind in the order of their starts.

    At most about `limit` rows of each kind are shown; of more, every n-th step or turn is. `notes` says so.
    """

    def __init__(self, run: Run, limit: int) -> None:
        self._run = run
        self._limit = limit
        self.rows = run.tables()
        self.offsets_ns = offsets_of(run) if self.rows["spans"] else {}
        self.notes: list[str] = []
        self._groups = _process_names(run.processes())
        if self.offsets_ns:
            moved = ", ".join(f"{name} {move / 1e6:+.1f} ms" for name, move in sorted(self.offsets_ns.items())[:5])
            self.notes.append(f"clocks of {len(self.offsets_ns)} processes were moved: {moved}")

    def start_ns(self) -> int:
        """The first moment of the run: no piece starts before it."""
        first = [row["started_ns"] for row in self._run.processes() if row["started_ns"] is not None]
        for table in ("steps", "spans", "rounds", "client_reports", "modules"):
            if self.rows[table]:
                query = f"SELECT process, min(t_ns) FROM {table} GROUP BY process"
                first += [t_ns + self.offsets_ns.get(process, 0) for process, t_ns in stream(self._run, query)]
        return min(first, default=0)

    def slices(self, advance: Advance) -> Iterator[Slice]:
        """All pieces, kind by kind."""
        for name, table, make in (
            ("rounds", "rounds", self._rounds),
            ("turns", "client_rounds", self._turns),
            ("spans", "spans", self._spans),
            ("steps", "steps", self._steps),
            ("modules", "modules", self._modules),
            ("collectives", "collectives", self._collectives),
        ):
            rows = self.rows.get(table, 0)
            if not rows:
                continue
            every = share_of(rows, self._limit)
            if every > 1:
                self.notes.append(f"{name} thinned: 1 of {every}")
            done = 0
            for count, one in make(every):
                yield one
                if count - done >= 1000:
                    advance((count - done) * every)
                    done = count
            advance(rows - done * every)

    # Federated -------------------------------------------------------------------------------------

    def _rounds(self, every: int) -> Iterator[tuple[int, Slice]]:
        query = f"""SELECT process, coalesce(federation, ''), round, t_ns, duration_ms, selected, reported, failed,
            loss, accuracy, select_ms, download_ms, compute_ms, upload_ms, aggregate_ms, evaluate_ms, wait_ms
            FROM rounds WHERE coalesce(round, 0) % {every} = 0 ORDER BY t_ns, duration_ms DESC"""
        phases = self._phases(every) if self.rows["spans"] else iter(())
        rounds = (self._round(row) for row in stream(self._run, query))
        merged = heapq.merge(rounds, phases, key=lambda one: (one.start_ns, -one.duration_ns))
        yield from enumerate(merged, 1)

    def _round(self, row: tuple[Any, ...]) -> Slice:
        process, federation, number, t_ns, duration_ms, selected, reported, failed, loss, accuracy, *phases = row
        names = (*PHASES, "wait")
        args = known(
            round=number, selected=selected, reported=reported, failed=failed, loss=loss, accuracy=accuracy,
            **{f"{name}_ms": value for name, value in zip(names, phases, strict=True)},
        )  # fmt: skip
        return Slice(
            "round", _server(federation), "rounds", f"round {number}", self._time(process, t_ns), ns_of(duration_ms),
            args, cause=f"round/{federation}/{number}",
        )  # fmt: skip

    def _phases(self, every: int) -> Iterator[Slice]:
        """The phases of rounds that were marked with spans: when they began is known."""
        names = ", ".join(f"'{name}'" for name in PHASES)
        query = f"""SELECT phase.process, json_extract_string(whole.fields, '$.federation'), phase.name, phase.t_ns,
            phase.duration_ms, phase.round
            FROM spans AS phase JOIN spans AS whole ON phase.parent = whole.span AND phase.trace = whole.trace
            WHERE whole.name = 'round' AND phase.name IN ({names}) AND phase.client IS NULL
            AND phase.process = whole.process AND coalesce(phase.round, 0) % {every} = 0
            ORDER BY phase.t_ns, phase.duration_ms DESC LIMIT {self._limit}"""
        for process, federation, name, t_ns, duration_ms, number in stream(self._run, query):
            yield Slice("phase", _server(federation or ""), "rounds", name, self._time(process, t_ns),
                        ns_of(duration_ms), known(round=number))  # fmt: skip

    def _turns(self, every: int) -> Iterator[tuple[int, Slice]]:
        return self._turns_where(f"hash(turns.client, turns.round) % {every} = 0")

    def _turns_where(self, where: str) -> Iterator[tuple[int, Slice]]:
        query = f"""WITH starts AS (SELECT client, round, federation, turn, arg_min(process, t_ns) AS process
            FROM client_reports GROUP BY ALL), whole AS (SELECT federation, round, any_value(process) AS process,
            min(t_ns) AS t_ns, max(duration_ms) AS duration_ms FROM rounds GROUP BY federation, round)
            SELECT starts.process, coalesce(turns.federation, ''), turns.client, turns.round, turns.t_ns,
            turns.duration_ms, turns.download_ms, turns.compute_ms, turns.upload_ms, whole.process, whole.t_ns,
            whole.duration_ms, turns.status, turns.samples, turns.loss, turns.sent_bytes, turns.received_bytes,
            turns.wait_ms, turns.error
            FROM client_rounds AS turns JOIN starts ON turns.client IS NOT DISTINCT FROM starts.client
            AND turns.round = starts.round AND turns.federation IS NOT DISTINCT FROM starts.federation
            AND turns.turn IS NOT DISTINCT FROM starts.turn
            LEFT JOIN whole ON turns.federation IS NOT DISTINCT FROM whole.federation AND turns.round = whole.round
            WHERE {where} ORDER BY turns.t_ns"""
        for count, row in enumerate(stream(self._run, query), 1):
            for piece in self._turn(row):
                yield count, piece

    def _turn(self, row: tuple[Any, ...]) -> Iterator[Slice]:
        """A client's turn with its transfers, inside its round, and its phases inside it."""
        process, federation, client, number, t_ns, duration_ms, *phases_ms = row[:9]
        server, round_t_ns, round_ms, status, samples, loss, sent, received, wait_ms, error = row[9:]
        start_ns, turn_ns = self._time(process, t_ns), ns_of(duration_ms)
        phases = [(name, ns_of(value)) for name, value in zip(PHASES[1:4], phases_ms, strict=True) if value is not None]
        total_ns = sum(length for _, length in phases)
        if total_ns > turn_ns + 1_000_000:  # the transfers were seen by the server and come on top
            start_ns -= dict(phases).get("download", 0)
            turn_ns = total_ns
        if round_t_ns is not None and round_ms is not None:
            low_ns = self._time(server, round_t_ns)
            high_ns = low_ns + ns_of(round_ms)
            start_ns = max(low_ns, min(start_ns, high_ns - turn_ns))
            turn_ns = max(0, min(turn_ns, high_ns - start_ns))
        args = known(client=client, round=number, status=status, samples=samples, loss=loss, sent_bytes=sent,
                     received_bytes=received, duration_ms=duration_ms, wait_ms=wait_ms, error=error)  # fmt: skip
        group, track = _clients(federation), f"client {printable(str(client))}"
        name = f"round {number}" if status in ("ok", None) else f"round {number}: {status}"
        yield Slice("turn", group, track, name, start_ns, turn_ns, args, caused_by=f"round/{federation}/{number}")
        end_ns = start_ns + turn_ns
        for name, length_ns in phases:
            length_ns = min(length_ns, end_ns - start_ns)
            yield Slice("turn phase", group, track, name, start_ns, length_ns, known(round=number))
            start_ns += length_ns

    # Processes -------------------------------------------------------------------------------------

    def _spans(self, every: int) -> Iterator[tuple[int, Slice]]:
        guests = """SELECT guest.parent FROM spans AS guest JOIN spans AS host ON guest.parent = host.span
            AND guest.trace = host.trace WHERE guest.process <> host.process"""
        query = f"""SELECT mine.process, mine.name, mine.t_ns, mine.duration_ms, mine.ok, mine.trace, mine.span,
            mine.parent, mine.client, mine.round, mine.fields, mine.exception, other.process, mine.span IN ({guests})
            FROM (SELECT *, row_number() OVER (ORDER BY t_ns) AS place FROM spans) AS mine
            LEFT JOIN spans AS other ON mine.parent = other.span AND mine.trace = other.trace
            WHERE mine.place % {every} = 0 OR mine.parent IS NULL ORDER BY mine.t_ns, mine.duration_ms DESC"""
        for count, row in enumerate(stream(self._run, query), 1):
            process, name, t_ns, duration_ms, ok, trace, span, parent, client, number, *rest = row
            fields, exception, home, has_guests = rest
            args = known(ok=ok, trace=trace, span=span, parent=parent, client=client, round=number, exception=exception)
            is_guest = home is not None and home != process
            yield count, Slice(
                "span", self._group(process), "spans", printable(str(name)), self._time(process, t_ns),
                ns_of(duration_ms), {**fields_of(fields), **args}, cause=f"span/{span}" if has_guests else None,
                caused_by=f"span/{parent}" if is_guest else None,
            )  # fmt: skip

    def _steps(self, every: int) -> Iterator[tuple[int, Slice]]:
        query = f"""SELECT process, client, round, optimizer, step, t_ns, step_ms, data_ms, forward_ms, backward_ms,
            optimizer_ms, loss, lr, grad_norm, samples FROM steps WHERE step % {every} = 0
            ORDER BY t_ns - 1e6 * greatest(coalesce(step_ms, 0), coalesce(data_ms, 0) + coalesce(forward_ms, 0)
            + coalesce(backward_ms, 0) + coalesce(optimizer_ms, 0)), t_ns DESC"""
        for count, row in enumerate(stream(self._run, query), 1):
            process, client, number, optimizer, step, t_ns, step_ms, *rest = row
            phases_ms, (loss, lr, grad_norm, samples) = rest[:4], rest[4:]
            lengths = [(name, ns_of(value)) for name, value in zip(_STEP_PHASES, phases_ms, strict=True) if value]
            end_ns = self._time(process, t_ns)
            duration_ns = max(ns_of(step_ms), sum(length for _, length in lengths))
            args = known(step=step, client=client, round=number, optimizer=optimizer, loss=loss, lr=lr,
                         grad_norm=grad_norm, samples=samples)  # fmt: skip
            group = self._group(process)
            yield count, Slice("step", group, "steps", f"step {step}", end_ns - duration_ns, duration_ns, args)
            start_ns = end_ns - sum(length for _, length in lengths)
            for name, length_ns in lengths:
                yield count, Slice("step phase", group, "steps", name, start_ns, length_ns)
                start_ns += length_ns

    def _modules(self, every: int) -> Iterator[tuple[int, Slice]]:
        """Modules of sampled steps: nested by name, forward before backward, up to the end of their step."""
        models = "SELECT process, step, any_value(model) FROM steps WHERE model IS NOT NULL GROUP BY process, step"
        roots = {(process, step): model for process, step, model in stream(self._run, models)}
        query = """SELECT process, t_ns, step, client, round, module, stage, duration_ms, allocated_bytes
            FROM modules"""  # not sorted: the order of the rows is the order of the calls
        count = 0
        samples = itertools.groupby(stream(self._run, query), key=lambda row: row[:3])
        for (process, t_ns, step), rows in itertools.islice(samples, 0, None, every):
            taken = list(rows)
            client, number = taken[0][3:5]
            calls = [ModuleCall(str(module), str(stage), ns_of(ms), size) for *_, module, stage, ms, size in taken]
            placed = lay_out(calls, roots.get((process, step)))
            start_ns = self._time(process, t_ns) - max((one.start_ns + one.length_ns for one in placed), default=0)
            for one in placed:
                count += 1
                args = known(step=step, client=client, round=number, stage=one.call.stage,
                             duration_ms=one.call.duration_ns / 1e6, allocated_bytes=one.call.bytes)  # fmt: skip
                yield count, Slice("module", self._group(process), "modules", printable(one.call.module),
                                   start_ns + one.start_ns, one.length_ns, args)  # fmt: skip

    def _collectives(self, every: int) -> Iterator[tuple[int, Slice]]:
        """Calls of `torch.distributed`; one that was not seen to be complete has no length."""
        query = f"""SELECT process, t_ns, completed_ns, op, "group", seq, bytes, done, via, step FROM (SELECT *,
            row_number() OVER (PARTITION BY process ORDER BY t_ns) AS place FROM collectives)
            WHERE (place - 1) % {every} = 0 ORDER BY t_ns, completed_ns DESC"""
        for count, row in enumerate(stream(self._run, query), 1):
            process, t_ns, completed_ns, op, group, seq, size, done, via, step = row
            args = known(group=group, seq=seq, bytes=size, done=done, via=via, step=step)
            length_ns = max(0, completed_ns - t_ns) if completed_ns is not None else 0
            yield count, Slice("collective", self._group(process), "collectives", printable(str(op)),
                               self._time(process, t_ns), length_ns, args)  # fmt: skip

    def _group(self, process: str) -> str:
        return self._groups.get(process) or f"process {process}"

    def _time(self, process: str, t_ns: int) -> int:
        return int(t_ns) + self.offsets_ns.get(process, 0)


def _process_names(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What each process is called; those that would be called the same have their ids behind."""
    names = {row["process"]: _process_name(row) for row in rows}
    counts = Counter(names.values())
    return {process: name if counts[name] == 1 else f"{name} ({process})" for process, name in names.items()}


def _process_name(row: Mapping[str, Any]) -> str:
    rank = f"rank {row['rank']}, " if row["rank"] is not None else ""
    return f"{rank}process {row['pid']} on {printable(str(row['host']))}"


def _server(federation: str) -> str:
    return f"server: {printable(federation)}" if federation else "server"


def _clients(federation: str) -> str:
    return f"clients: {printable(federation)}" if federation else "clients"
