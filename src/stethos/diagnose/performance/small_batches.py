"""Steps on very few samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.performance.path import STEPS_READ, finding_of, steps_in
from stethos.diagnose.window import Window
from stethos.profile.bottleneck import batch_bottleneck


@dataclass(frozen=True, slots=True)
class SmallBatches:
    """Steps handle so few samples that their fixed cost prevails.

    What it looks at: samples per step, and the share of a step that does not depend on them: the optimizer, and what is
    neither data nor forward nor backward.

    Why it matters: a batch twice as large would take far less than twice as long.

    Not a fault when: the batch is small for the sake of generalisation or memory.

    Next step: try a batch twice as large, and scale the learning rate with it.
    """

    code: ClassVar[str] = "PRF005"
    name: ClassVar[str] = "small-batches"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Needs] = {"steps": frozenset({"process", "step_ms", "samples", "optimizer_ms"})}
    reads: ClassVar[Needs] = STEPS_READ
    explains: ClassVar[frozenset[str]] = frozenset()

    samples: int = 8
    share: float = 0.4

    def check(self, window: Window) -> Iterator[Finding]:
        found = batch_bottleneck(steps_in(window), self.samples, self.share)
        if found is not None:
            yield finding_of(self, found, first=0, unit="step", confidence=0.7)
