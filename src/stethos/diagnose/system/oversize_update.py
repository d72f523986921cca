"""SYS007: updates that are larger than the others'."""

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
class OversizeUpdate:
    """A client sends far more bytes than the others.

    What it looks at: the size of each client's update, uncompressed if known, else as sent, against the median of the
    others in the same round.

    Why it matters: all clients train the same model, so an update of another size carries something else: optimizer
    state, float64 instead of float32, a missing compression, another model. It costs time and memory at the server.

    Not a fault when: clients train models of different size by design.

    Next step: compare the layers of its update with another client's: `stethos compare-clients A B`.
    """

    code: ClassVar[str] = "SYS007"
    name: ClassVar[str] = "oversize-update"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"client_rounds": frozenset({"client", "round"})}
    reads: ClassVar[Needs] = {"client_rounds": frozenset({"federation", "t_ns", "status", "raw_bytes", "sent_bytes"})}
    explains: ClassVar[frozenset[str]] = frozenset()

    times: float = threshold(1.9, "times the bytes of the median other client")
    rounds: int = threshold(2, "rounds")

    def check(self, window: Window) -> Iterator[Finding]:
        for turns in turns_of(window):
            for column in ("raw_bytes", "sent_bytes"):
                size = np.where(turns.is_ok, turns.grid(column), np.nan)
                others = others_median(size)
                with np.errstate(invalid="ignore"):
                    large = size > self.times * others
                found = [place for place in range(len(size)) if large[place].sum() >= self.rounds]
                yield from (self._finding(turns, column, place, size, others, large[place]) for place in found)
                if found:
                    break

    def _finding(self, turns: Turns, column: str, place: int, size: Grid, others: Grid, large: Array) -> Finding:
        client = turns.clients[place]
        first, last = (turns.rounds[at] for at in np.flatnonzero(large)[[0, -1]])
        is_open = bool(large[np.flatnonzero(~np.isnan(size[place]))[-self.rounds :]].any())
        own, usual = median_of(size[place][large]), median_of(others[place][large])
        return Finding(
            self.code,
            self.name,
            self.name,
            self.severity,
            f"client {client} sends {own / max(1.0, usual):.1f} times as many bytes as the others",
            Subject((client,), first=first, last=None if is_open else last),
            confidence=0.95,
            evidence=(
                Evidence(
                    f"its updates have {bytes_words(own)}, those of the others {bytes_words(usual)}",
                    f"SELECT round, client, raw_bytes, sent_bytes FROM client_rounds {turns.where()}"
                    f"ORDER BY round, {column} DESC",
                    numbers(size[place]),
                    numbers(column_medians(np.delete(size, place, axis=0))),
                ),
            ),
            next_step=f"compare what {client} sends with another client: data type, optimizer state, compression",
            detail={"bytes": own, "usual_bytes": usual, "column": column},
            is_open=is_open,
        )
