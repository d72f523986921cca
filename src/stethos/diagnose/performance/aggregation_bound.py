"""A server that keeps its clients waiting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.performance.path import ROUNDS_READ, finding_of, rounds_in
from stethos.diagnose.turn import numbers
from stethos.diagnose.window import Window
from stethos.profile.bottleneck import server_bottleneck


@dataclass(frozen=True, slots=True)
class AggregationBound:
    """The server's own work, aggregation or evaluation, takes a large part of each round.

    What it looks at: `aggregate_ms` and `evaluate_ms` against the duration of the rounds.

    Why it matters: meanwhile every client waits, however fast it is.

    Not a fault when: the rounds are so short that nothing is gained (parts below `at_least_ms` are not counted).

    Next step: aggregate updates as they come in, evaluate on fewer samples or every few rounds.
    """

    code: ClassVar[str] = "PRF003"
    name: ClassVar[str] = "aggregation-bound"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Needs] = {"rounds": frozenset({"round", "duration_ms"})}
    reads: ClassVar[Needs] = ROUNDS_READ
    explains: ClassVar[frozenset[str]] = frozenset()

    share: float = 0.3
    at_least_ms: float = 50.0
    rounds: int = 3

    def check(self, window: Window) -> Iterator[Finding]:
        for one in rounds_in(window):
            if len(one.numbers) < self.rounds:
                continue
            found = server_bottleneck(one, self.share, self.at_least_ms)
            if found is not None:
                part = one.parts["aggregate" if found.kind == self.name else "evaluate"]
                yield finding_of(
                    self, found, first=one.numbers[0], unit="round", series=numbers(part),
                    others=numbers(one.duration_ms),
                )  # fmt: skip
