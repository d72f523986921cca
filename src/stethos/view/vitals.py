"""What `stethos top` shows of a run: read once in whole, then only what has been added since."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from stethos.diagnose.followup import completed
from stethos.diagnose.life import read_diagnosis
from stethos.store.catalogue import launchers_of, overhead_share, run_state
from stethos.store.findings import FILE as FINDINGS_FILE
from stethos.view.finding import client_marks
from stethos.view.round import RoundView

if TYPE_CHECKING:
    from stethos.diagnose.diagnosis import Diagnosis
    from stethos.store.run import Run

ClientOrder = Literal["time", "loss", "name"]
_ORDERS = {"time": ("duration_ms", True), "loss": ("loss", True), "name": ("client", False)}
POINTS = 240  # of a curve
_ROUNDS = 40  # more than a high terminal shows
_FINDINGS = 6
_CLIENTS = 60
_SPEED_S = 10.0  # steps per second are counted over this
_OVERLAP_NS = 2_000_000_000  # rows of several processes arrive a little out of order


@dataclass(frozen=True, slots=True)
class ProcessVitals:
    """A process at one moment; `age_s` is how long ago its last step was."""

    process: str
    rank: int | None
    pid: int | None
    host: str | None
    state: str
    steps: int
    steps_per_s: float | None
    age_s: float | None
    cpu_share: float | None
    rss_bytes: int | None


@dataclass(frozen=True, slots=True)
class TurnVitals:
    """A client in the round that is on or was last; `mark` is what the kept findings accuse it of."""

    client: str
    round: int
    status: str | None
    duration_ms: float | None
    loss: float | None
    error: str | None
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class FindingVitals:
    """An open finding of the last diagnosis that was kept."""

    severity: str
    code: str
    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Vitals:
    """A run at one moment; `conclusion` is what the last diagnosis that was kept says, None if there is none."""

    run: str
    state: str
    duration_s: float | None
    steps: int
    steps_per_s: float | None
    loss: float | None
    losses: tuple[float | None, ...]
    overhead_share: float | None
    rows_dropped: int
    rows_lost: int
    processes: tuple[ProcessVitals, ...]
    rounds: tuple[RoundView, ...]
    clients: tuple[TurnVitals, ...]
    clients_seen: int
    clients_failed: int
    findings: tuple[FindingVitals, ...]
    open_findings: int
    conclusion: str | None


@dataclass(slots=True)
class Monitor:
    """Takes a run's vitals again and again; the cost follows what is new, not what is there."""

    run: Run
    now_ns: Callable[[], int] = time.time_ns
    client_order: ClientOrder = "time"
    is_reversed: bool = False
    wanted: str = ""  # a part of the name of a client
    _losses: list[float | None] = field(default_factory=list)
    _per_point: int = 1
    _pending: list[float] = field(default_factory=list)
    _last_loss: float | None = None
    _seen_ns: int = 0
    _seen_steps: set[tuple[str, int, int]] = field(default_factory=set)
    _rounds: dict[tuple[str | None, int], RoundView] = field(default_factory=dict)
    _rounds_ns: int = 0
    _speeds: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    _kept: Diagnosis | None = None
    _kept_ns: int = 0

    def look(self) -> Vitals:
        """The vitals now."""
        rows = self.run.processes()
        now_ns = self.now_ns()
        readers = self.run.readers()
        counters = {reader.name: reader.counters for reader in readers}
        stored = self._stored()
        if stored["steps"]:
            self._read_losses(stored["steps"])
        if stored["rounds"]:
            self._read_rounds()
        rates = self._rates({row["process"]: row["steps"] or 0 for row in rows}, now_ns)
        loads = self._loads(now_ns) if stored["host"] else {}
        kept = self._diagnosis()
        found = [one for one in kept.findings if one.is_open] if kept is not None else []
        started = [row["started_ns"] for row in rows if row["started_ns"]]
        ended = [row["ended_ns"] for row in rows if row["ended_ns"]]
        clients, seen, failed = self._clients() if stored["client_reports"] else ((), 0, 0)
        is_live = self.run.is_live
        end_ns = now_ns if is_live else max(ended, default=now_ns)
        state = "running" if is_live else run_state(launchers_of(self.run.place), [row["state"] for row in rows])
        processes = tuple(
            ProcessVitals(
                process=row["process"], rank=row["rank"], pid=row["pid"], host=row["host"], state=row["state"],
                steps=row["steps"] or 0, steps_per_s=rates.get(row["process"]) if row["state"] == "running" else None,
                age_s=_age_s(counters.get(row["process"]), now_ns) if row["state"] == "running" else None,
                cpu_share=cpu, rss_bytes=rss,
            )
            for row in rows
            for cpu, rss in [loads.get(row["process"], (None, None))]
        )  # fmt: skip
        running = [
            rate for row in rows if row["state"] == "running" and (rate := rates.get(row["process"])) is not None
        ]
        return Vitals(
            run=self.run.name,
            state=state,
            duration_s=(end_ns - min(started)) / 1e9 if started else None,
            steps=sum(row["steps"] or 0 for row in rows),
            steps_per_s=sum(running) if running else None,
            loss=self._last_loss,
            losses=tuple(self._losses),
            overhead_share=overhead_share(readers),
            rows_dropped=sum(row["rows_dropped"] or 0 for row in rows),
            rows_lost=sum(row["rows_lost"] or 0 for row in rows),
            processes=processes,
            rounds=tuple(list(self._rounds.values())[-_ROUNDS:]),
            clients=clients,
            clients_seen=seen,
            clients_failed=failed,
            findings=tuple(
                FindingVitals(one.severity.word, one.code, one.name, one.title) for one in found[:_FINDINGS]
            ),
            open_findings=len(found),
            conclusion=None if kept is None else kept.conclusion.text,
        )

    def _stored(self) -> Counter[str]:
        """Rows per table, as the files' own books have them."""
        stored: Counter[str] = Counter()
        for reader in self.run.readers():
            stored.update(reader.rows_by_table(self.run.examiner))
        return stored

    def _read_losses(self, stored: int) -> None:
        """Add the losses that are new to the curve; when it gets long, neighbours are put together."""
        if not self._seen_ns:
            self._per_point = max(1, math.ceil(stored / POINTS))
        since = self._seen_ns - _OVERLAP_NS
        query = f"SELECT process, optimizer, step, t_ns, loss FROM steps WHERE t_ns > {since} ORDER BY t_ns"
        if not self._seen_ns and stored > 20 * POINTS:  # the first look at a long run: let the engine do it
            ((first_ns, last_ns),) = self.run.rows("SELECT min(t_ns), max(t_ns) FROM steps").values
            part_ns = max(1, (last_ns - first_ns) // POINTS)
            query = f"""SELECT max(t_ns), avg(loss) FROM steps GROUP BY (t_ns - {first_ns}) // {part_ns} ORDER BY 1"""
            for t_ns, loss in self.run.rows(query).values:
                self._seen_ns = max(self._seen_ns, t_ns)
                self._losses.append(loss)
            last = "SELECT loss FROM steps WHERE loss IS NOT NULL ORDER BY t_ns DESC LIMIT 1"
            self._last_loss = next((loss for (loss,) in self.run.rows(last).values), None)
            recent = f"SELECT process, optimizer, step FROM steps WHERE t_ns > {self._seen_ns - _OVERLAP_NS}"
            self._seen_steps = {(process, optimizer, step) for process, optimizer, step in self.run.rows(recent).values}
            return
        seen = set()
        for process, optimizer, step, t_ns, loss in self.run.rows(query).values:
            key = (process, optimizer, step)
            self._seen_ns = max(self._seen_ns, t_ns)
            seen.add(key)
            if key not in self._seen_steps:
                self._add_loss(loss)
        self._seen_steps = seen

    def _add_loss(self, loss: float | None) -> None:
        if loss is not None:
            self._last_loss = loss
            self._pending.append(loss)
        if len(self._pending) >= self._per_point:
            self._losses.append(sum(self._pending) / len(self._pending))
            self._pending.clear()
        if len(self._losses) > 2 * POINTS:
            pairs = zip(self._losses[::2], self._losses[1::2], strict=False)
            self._losses = [_middle(one, other) for one, other in pairs]
            self._per_point *= 2

    def _read_rounds(self) -> None:
        query = f"""SELECT federation, round, t_ns, duration_ms, selected, reported, failed, wait_ms, loss, accuracy
            FROM rounds WHERE t_ns >= {self._rounds_ns} ORDER BY t_ns"""
        for federation, number, t_ns, duration_ms, selected, reported, failed, *values in self.run.rows(query).values:
            one = RoundView(federation, number, "ended", t_ns, duration_ms, selected, reported, failed, *values)
            self._rounds[federation, number] = one
            self._rounds_ns = max(self._rounds_ns, t_ns)
        for key in list(self._rounds)[: -POINTS - _ROUNDS]:
            del self._rounds[key]

    def _clients(self) -> tuple[tuple[TurnVitals, ...], int, int]:
        """Turns of the round that is on or was last, how many there are, and how many failed.

        Those that findings accuse come first, then failed ones, then as `client_order` says.
        """
        last = "SELECT max(round) FROM client_reports"
        if self._rounds_ns:
            last += f" WHERE t_ns >= {self._rounds_ns - _OVERLAP_NS}"
        ((number,),) = self.run.rows(last).values
        if number is None:
            return (), 0, 0
        marks = client_marks(self._kept.findings) if self._kept is not None else {}
        accused = {name: mark.text for name, mark in marks.items() if mark.is_accused}
        column, is_down = _ORDERS[self.client_order]
        by = f"{column} {'DESC' if is_down != self.is_reversed else 'ASC'} NULLS LAST, client"
        query = f"""SELECT count(*) OVER (), count(*) FILTER (status <> 'ok') OVER (), client, round, status,
            duration_ms, loss, error FROM client_rounds WHERE round = {number} AND client IS NOT NULL
            AND contains(lower(client), lower({_quoted(self.wanted)}))
            ORDER BY {_listed(accused)} DESC, status = 'ok', {by} LIMIT {_CLIENTS}"""
        found = self.run.rows(query).values
        seen, failed = found[0][:2] if found else (0, 0)
        names = ("client", "round", "status", "duration_ms", "loss", "error")
        turns = (dict(zip(names, row[2:], strict=True)) for row in found)
        return tuple(TurnVitals(**turn, mark=accused.get(turn["client"])) for turn in turns), seen, failed

    def _diagnosis(self) -> Diagnosis | None:
        """The last one that was kept, read again when it has changed."""
        try:
            changed_ns = (self.run.path / FINDINGS_FILE).stat().st_mtime_ns
            with suppress(FileNotFoundError):  # its write-ahead log
                changed_ns = max(changed_ns, (self.run.path / f"{FINDINGS_FILE}-wal").stat().st_mtime_ns)
        except FileNotFoundError:
            return None
        if changed_ns != self._kept_ns:
            kept = read_diagnosis(self.run.path)
            self._kept, self._kept_ns = kept if kept is None else completed(kept, self.run), changed_ns
        return self._kept

    def _rates(self, steps: dict[str, int], now_ns: int) -> dict[str, float]:
        """Steps per second of each process since some seconds ago, or since the last look."""
        self._speeds.append((now_ns, steps))
        while len(self._speeds) > 2 and now_ns - self._speeds[1][0] > _SPEED_S * 1e9:
            self._speeds.pop(0)
        then_ns, before = self._speeds[0]
        passed_s = (now_ns - then_ns) / 1e9
        if passed_s <= 0:
            return self._first_rates(now_ns)
        return {name: (count - before.get(name, 0)) / passed_s for name, count in steps.items()}

    def _first_rates(self, now_ns: int) -> dict[str, float]:
        """Before there is a second look: steps of the last seconds that are stored."""
        since_ns = now_ns - int(_SPEED_S * 1e9)
        query = f"""SELECT process, count(*), ({now_ns} - min(t_ns)) / 1e9 FROM steps WHERE t_ns > {since_ns}
            GROUP BY process"""
        return {name: count / passed for name, count, passed in self.run.rows(query).values if passed > 0}

    def _loads(self, now_ns: int) -> dict[str, tuple[float | None, int | None]]:
        since_ns = now_ns - int(_SPEED_S * 1e9)
        query = f"""SELECT process, arg_max(cpu_share, t_ns), arg_max(rss_bytes, t_ns) FROM host WHERE t_ns > {since_ns}
            GROUP BY process"""
        return {process: (cpu, rss) for process, cpu, rss in self.run.rows(query).values}


def _age_s(counters: Any, now_ns: int) -> float | None:
    """Seconds since the last step; None before the first one."""
    return max(0.0, (now_ns - counters.last_step_ns) / 1e9) if counters is not None and counters.last_step_ns else None


def _quoted(text: str) -> str:
    """A text of SQL."""
    return "'" + text.replace("'", "''").replace("\0", "") + "'"


def _listed(names: Iterable[str]) -> str:
    """Whether the client is one of these, as SQL."""
    return f"(client IN ({', '.join(map(_quoted, ('', *names)))}))"


def _middle(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return one / 2 + other / 2
