"""FED014: a client's numbers that leave the other clients' behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import Grid, Turns, numbers, others_median, turns_of
from stethos.diagnose.window import Window
from stethos.outlier import LEVEL_TIMES
from stethos.profile.column import median_of
from stethos.store.frame import Array
from stethos.store.literal import literal

_REPORTED = {"entry_loss": "loss of the incoming model", "exit_loss": "loss after training", "samples": "samples"}
_LEAST = 1e-12


@dataclass(frozen=True, slots=True)
class ClientAnomaly:
    """A client's losses, samples or logged numbers suddenly move away from the other clients'.

    What it looks at: for each client and number, the distance to the other clients' median in the same round. It is
    reported if that distance was steady before, has been many times larger since, and no other client's was ever half
    as large.

    Why it matters: what happens to all clients at once is training; what happens to one is its data, its code or its
    machine.

    Not a fault when: the client got new data on purpose.

    Next step: ask the client what changed in that round: data, preprocessing, labels, version of the code.
    """

    code: ClassVar[str] = "FED014"
    name: ClassVar[str] = "client-anomaly"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"client_rounds": frozenset({"client", "round"})}
    reads: ClassVar[Needs] = {
        "client_rounds": frozenset({"federation", "t_ns", "status", *_REPORTED}),
        "metrics": frozenset({"client", "round", "name", "value"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset()

    times: float = threshold(LEVEL_TIMES, "times the client's own widest swing before")
    before: int = threshold(5, "rounds before")
    after: int = threshold(3, "rounds after")
    clients: int = threshold(5, "clients")
    floor: float = threshold(0.05, "swing that counts at least, as a share of the others' median")

    def check(self, window: Window) -> Iterator[Finding]:
        for turns in turns_of(window):
            if len(turns.clients) < self.clients or len(turns.rounds) < self.before + self.after:
                continue
            for name, words in _REPORTED.items():
                sql = f"SELECT round, client, {name} FROM client_rounds {turns.where()}ORDER BY round, client"
                yield from self._changes(turns, np.where(turns.is_ok, turns.grid(name), np.nan), words, sql)
            for name, grid in _logged(window, turns).items():
                sql = f"SELECT round, client, value FROM metrics WHERE name = {literal(name)} ORDER BY round, client"
                yield from self._changes(turns, grid, f"`{name}`", sql)

    def _changes(self, turns: Turns, grid: Grid, words: str, sql: str) -> Iterator[Finding]:
        if (~np.isnan(grid)).any(axis=1).sum() < self.clients:
            return
        typical = others_median(grid)
        with np.errstate(all="ignore"):
            apart = (grid - typical) / np.maximum(np.abs(typical), _LEAST)
        usual = _swing_of_others(apart)
        known = np.where(np.isfinite(apart), apart, np.nan)
        span = np.nan_to_num(np.nanmax(known, axis=1) - np.nanmin(known, axis=1))
        # Nobody moves farther from any level of its own than its values lie apart.
        for place in np.flatnonzero(span >= np.maximum(self.times * self.floor, 2 * usual)).tolist():
            columns = np.flatnonzero(np.isfinite(apart[place]))
            start = self._start(apart[place, columns], float(usual[place]))
            if start is not None:
                yield self._finding(turns, place, int(columns[start]), grid, typical, words, sql)

    def _start(self, own: Array, usual: float) -> int | None:
        """The place from which on this client is another one; None if it stays what it was."""
        for cut in range(self.before, len(own) - self.after + 1):
            past, rest = own[:cut], own[cut:]
            level = float(np.median(past))
            swing = max(float(np.abs(past - level).max()), self.floor)
            moved = rest - level
            is_far = bool((np.abs(moved) >= self.times * swing).all() and (np.abs(moved) >= 2 * usual).all())
            if is_far and bool((np.sign(moved) == np.sign(moved[0])).all()):
                return cut
        return None

    def _finding(
        self, turns: Turns, place: int, start: int, grid: Grid, typical: Grid, words: str, sql: str
    ) -> Finding:
        client, first = turns.clients[place], turns.rounds[start]
        was, now = median_of(grid[place, :start]), median_of(grid[place, start:])
        others = median_of(typical[place, start:])
        return Finding(
            self.code,
            self.name,
            "level",
            self.severity,
            f"client {client}: {words} {was:.3g} before round {first}, {now:.3g} since; the others have {others:.3g}",
            Subject((client,), first=first),
            confidence=0.9,
            evidence=(Evidence(f"{words}, against the other clients", sql, numbers(grid[place]),
                               numbers(typical[place])),),
            next_step="ask the client what changed in that round: data, preprocessing, labels, version of the code",
            detail={"before": was, "after": now, "others": others},
        )  # fmt: skip


def _swing_of_others(apart: Grid) -> Array:
    """For each client how far any of the others ever went from its own median."""
    with np.errstate(all="ignore"):
        swing = np.nanmax(np.abs(apart - np.nanmedian(apart, axis=1, keepdims=True)), axis=1, initial=0.0)
    widest = int(swing.argmax())
    found = np.full(len(swing), swing[widest])
    found[widest] = np.delete(swing, widest).max(initial=0.0)
    return found


def _logged(window: Window, turns: Turns) -> dict[str, Grid]:
    """Metrics that clients logged in rounds, clients x rounds; the last value where there are several."""
    frame = window.frame("metrics")
    if not len(frame) or not all(column in frame for column in ("client", "round", "name", "value")):
        return {}
    rows = {client: place for place, client in enumerate(turns.clients)}
    columns = {number: place for place, number in enumerate(turns.rounds)}
    found: dict[str, Grid] = {}
    values = (frame[name].tolist() for name in ("name", "client", "round", "value"))
    for name, client, number, value in zip(*values, strict=True):
        if client in rows and number in columns and name is not None:
            grid = found.setdefault(str(name), np.full((len(rows), len(columns)), np.nan))
            grid[rows[client], columns[number]] = value
    return found
