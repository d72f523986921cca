"""SYS011: clients that need far more memory than the others, or ever more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import Grid, Turns, bytes_words, column_medians, numbers, others_median, turns_of
from stethos.diagnose.window import Window
from stethos.profile.column import median_of
from stethos.store.frame import Array


@dataclass(frozen=True, slots=True)
class ClientMemory:
    """A client's peak memory is far above the others', or grows from round to round.

    What it looks at: `peak_bytes` of each turn against the median of the others in the same round, and against the
    client's own first rounds.

    Why it matters: the client will be killed when its machine runs out; the others train the same model with less.

    Not a fault when: it trains with a larger batch or on a GPU while the others do not.

    Next step: compare its batch size and data loader with another client's; look for what it keeps between rounds.
    """

    code: ClassVar[str] = "SYS011"
    name: ClassVar[str] = "client-memory"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"client_rounds": frozenset({"client", "round", "peak_bytes"})}
    reads: ClassVar[Needs] = {"client_rounds": frozenset({"federation", "t_ns", "status"})}
    explains: ClassVar[frozenset[str]] = frozenset()

    times: float = threshold(3.0, "times the median of the others")
    at_least_bytes: float = threshold(1e9, "bytes beyond the others; a quarter of it where it grows")
    rounds: int = threshold(2, "rounds")
    growth: float = threshold(1.5, "times the first round's memory, where it grows")
    growing_rounds: int = threshold(8, "rounds, where it grows")
    rising: float = threshold(0.8, "share of the later rounds in which it grows")

    def check(self, window: Window) -> Iterator[Finding]:
        for turns in turns_of(window):
            peak = np.where(turns.is_ok, turns.grid("peak_bytes"), np.nan)
            others = others_median(peak)
            with np.errstate(invalid="ignore"):
                large = (peak > self.times * others) & (peak - others > self.at_least_bytes)
            for place in range(len(peak)):
                if large[place].sum() >= self.rounds:
                    first = int(np.flatnonzero(large[place])[0])
                    own, usual = median_of(peak[place][large[place]]), median_of(others[place][large[place]])
                    title = f"needs {bytes_words(own)} at its peak, the others {bytes_words(usual)}"
                    yield self._finding(turns, place, peak, first, title)
                elif (since := self._growing_since(peak[place], others[place])) is not None:
                    known = peak[place][~np.isnan(peak[place])]
                    title = f"needs more memory each round: from {bytes_words(known[0])} to {bytes_words(known[-1])}"
                    yield self._finding(turns, place, peak, since, title)

    def _growing_since(self, own: Array, others: Array) -> int | None:
        """The place of the round from which a client's memory grows while that of the others does not."""
        known = np.flatnonzero(~np.isnan(own))
        if len(known) < self.growing_rounds:
            return None
        late = known[len(known) // 2 :]
        grown = own[late[-1]] - own[known[0]]
        is_steady = (np.diff(own[late]) > 0).mean() >= self.rising
        others_grew = median_of(others[late[-2:]]) - median_of(others[known[:2]])
        if is_steady and own[late[-1]] > self.growth * own[known[0]] and grown > self.at_least_bytes / 4:
            return None if others_grew > grown / 2 else int(known[0])
        return None

    def _finding(self, turns: Turns, place: int, peak: Grid, first: int, title: str) -> Finding:
        client = turns.clients[place]
        return Finding(
            self.code,
            self.name,
            self.name,
            self.severity,
            f"client {client} {title}",
            Subject((client,), first=turns.rounds[first]),
            confidence=0.9,
            evidence=(
                Evidence(
                    "peak memory of its turns",
                    "SELECT round, client, peak_bytes FROM client_rounds "
                    + turns.where("status = 'ok'")
                    + "ORDER BY round, peak_bytes DESC",
                    numbers(peak[place]),
                    numbers(column_medians(np.delete(peak, place, axis=0))),
                ),
            ),
            next_step=f"compare batch size and data loader of {client} with another client; see what it keeps",
        )
