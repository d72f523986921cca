"""Ranks that are given different amounts of work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.performance.path import STEPS_READ, steps_in
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class UnevenRanks:
    """The ranks of a distributed job handle different numbers of samples per step.

    What it looks at: the median number of samples per step of each rank.

    Why it matters: the ranks wait for each other in every step, so that all of them take as long as the one with the
    most. A gradient that is the mean over ranks then also weighs samples unequally.

    Not a fault when: lengths of samples differ, and batches are made equal in tokens rather than in number.

    Next step: use a `DistributedSampler` and the same batch size on every rank; compare `stethos profile --by rank`.
    """

    code: ClassVar[str] = "PRF007"
    name: ClassVar[str] = "uneven-ranks"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Needs] = {"steps": frozenset({"process", "rank", "samples", "step_ms"})}
    reads: ClassVar[Needs] = STEPS_READ
    explains: ClassVar[frozenset[str]] = frozenset()

    times: float = 1.3
    steps: int = 20

    def check(self, window: Window) -> Iterator[Finding]:
        known = {one.rank: one for one in steps_in(window) if one.rank is not None and one.samples}
        if len(known) < 2 or min(one.steps for one in known.values()) < self.steps:
            return
        most = max(known, key=lambda rank: known[rank].samples or 0.0)
        least = min(known, key=lambda rank: known[rank].samples or 0.0)
        high, low = known[most].samples or 0.0, known[least].samples or 1.0
        if high < self.times * low:
            return
        yield Finding(
            self.code,
            self.name,
            self.name,
            self.severity,
            f"rank {most} handles {high:.0f} samples per step, rank {least} only {low:.0f}",
            Subject(ranks=(most,), first=0, unit="step"),
            confidence=0.9,
            evidence=(
                Evidence(
                    f"{high / low:.1f} times as many, over {known[most].steps:,} steps",
                    "SELECT rank, median(samples) AS samples, median(step_ms) AS step_ms FROM steps GROUP BY rank "
                    "ORDER BY rank",
                ),
            ),
            next_step="use a DistributedSampler and the same batch size on every rank",
            detail={"times": high / low},
        )
