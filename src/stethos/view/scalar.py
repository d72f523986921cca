"""A run's numbers over steps and rounds, as trackers of experiments want them: tag, step, value, time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stethos.view.plain import printable
from stethos.view.stream import Advance, share_of, stream

if TYPE_CHECKING:
    from stethos.store.run import Run

NAMED_CLIENTS = 50
_STEP_COLUMNS = ("loss", "lr", "grad_norm", "step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms",
                 "allocated_bytes", "peak_bytes")  # fmt: skip
_ROUND_COLUMNS = ("loss", "accuracy", "duration_ms", "reported", "failed", "aggregate_ms", "wait_ms", "drift",
                  "global_norm")  # fmt: skip
_CLIENT_COLUMNS = ("loss", "accuracy", "entry_loss", "duration_ms", "sent_bytes")


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value; `series` is what has its own count of steps: a process, a federation."""

    series: str
    tag: str
    step: int
    value: float
    t_ns: int


class Scalars:
    """All values of a run that were measured, series by series. NULL is no value; NaN is one."""

    def __init__(self, run: Run, limit: int) -> None:
        self._run = run
        self._limit = limit
        self.rows = run.tables()
        self.notes: list[str] = []
        self._names = {row["process"]: f"rank-{row['rank']}" if row["rank"] is not None else row["process"]
                       for row in run.processes()}  # fmt: skip

    def values(self, advance: Advance) -> Iterator[Scalar]:
        for table, make in (
            ("rounds", self._rounds),
            ("client_rounds", self._clients),
            ("steps", self._steps),
            ("metrics", self._metrics),
        ):
            if self.rows[table]:
                yield from make(share_of(self.rows[table], self._limit))
                advance(self.rows[table])

    def _rounds(self, every: int) -> Iterator[Scalar]:
        self._say(every, "rounds")
        query = f"""SELECT coalesce(federation, 'federation'), round, t_ns, {", ".join(_ROUND_COLUMNS)} FROM rounds
            WHERE round % {every} = 0 ORDER BY t_ns"""
        for federation, number, t_ns, *values in stream(self._run, query):
            yield from _scalars(federation, "round", _ROUND_COLUMNS, values, number, t_ns)

    def _clients(self, every: int) -> Iterator[Scalar]:
        """Those of the clients that took part most often: of thousands no chart shows more."""
        query = """SELECT client, count(*) FROM client_rounds WHERE client IS NOT NULL GROUP BY client
            ORDER BY count(*) DESC, client"""
        clients = list(stream(self._run, query))
        named = dict(clients[:NAMED_CLIENTS])
        if len(clients) > len(named):
            self.notes.append(f"{len(clients) - len(named)} of {len(clients)} clients left out")
        every = share_of(sum(named.values()), self._limit)
        self._say(every, "turns")
        query = f"""SELECT coalesce(federation, 'federation'), round, t_ns, client, {", ".join(_CLIENT_COLUMNS)}
            FROM client_rounds WHERE round % {every} = 0 ORDER BY t_ns"""
        for federation, number, t_ns, client, *values in stream(self._run, query):
            if client in named:
                yield from _scalars(federation, f"client/{client}", _CLIENT_COLUMNS, values, number, t_ns)

    def _steps(self, every: int) -> Iterator[Scalar]:
        self._say(every, "steps")
        query = f"""SELECT process, step, t_ns, {", ".join(_STEP_COLUMNS)} FROM steps WHERE step % {every} = 0
            ORDER BY process, t_ns"""
        for process, step, t_ns, *values in stream(self._run, query):
            yield from _scalars(self._names.get(process, process), "train", _STEP_COLUMNS, values, step, t_ns)

    def _metrics(self, every: int) -> Iterator[Scalar]:
        self._say(every, "metrics")
        query = f"""SELECT process, coalesce(round, step, 0), t_ns, name, value FROM (SELECT *, row_number() OVER
            (PARTITION BY process, name ORDER BY t_ns) AS place FROM metrics) WHERE (place - 1) % {every} = 0
            AND name IS NOT NULL ORDER BY process, t_ns"""
        for process, step, t_ns, name, value in stream(self._run, query):
            yield from _scalars(self._names.get(process, process), "metric", (str(name),), [value], step, t_ns)

    def _say(self, every: int, what: str) -> None:
        if every > 1:
            self.notes.append(f"{what} thinned: 1 of {every}")


def _scalars(
    series: str, prefix: str, names: tuple[str, ...], values: list[Any], step: int | None, t_ns: int
) -> Iterator[Scalar]:
    for name, value in zip(names, values, strict=True):
        if value is not None and step is not None:
            yield Scalar(printable(series), printable(f"{prefix}/{name}"), int(step), float(value), int(t_ns))
