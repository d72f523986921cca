"""PRG016: a model that answers every input alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, NEEDS, Inspected, details, inspected_of, known, merge_ranks
from stethos.diagnose.training import STEP_COLUMNS
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class ConstantOutputs:
    """The model gives the same answer, or has the same features, whatever its input: it has collapsed.

    What it looks at: how much outputs, and what layers are given, differ between the samples of an inspected batch,
    against their size, at the start and later.
    Why it matters: a loss can fall although nothing is learned from the inputs: all embeddings fall into one point,
    a code carries nothing, words are masked instead of padding.
    Not a fault when: the inputs carry no information about the targets.
    Next step: print the outputs of two different inputs, layer by layer.
    """

    code: ClassVar[str] = "PRG016"
    name: ClassVar[str] = "constant-outputs"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "implausible-loss", "vanishing-gradients", "dead-units", "saturated-units",
         "learning-rate-too-low", "update-to-weight-ratio", "overfitting"}
    )  # fmt: skip

    least: int = threshold(6, "inspected batches")
    alike: float = threshold(0.02, "spread of the outputs, as a share of their size")
    fallen: float = threshold(0.1, "share of the spread at the start")
    less: float = threshold(0.15, "share of the spread of the targets")
    line: float = threshold(1.5, "directions in which the features differ")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            if not one.is_federated and any(len(training) >= 30 for training in one.trainings):
                yield from self._check(one)

    def _check(self, one: Inspected) -> Iterator[Finding]:
        inputs = known(one.training, "input_std")
        if len(inputs) and (inputs == 0).all():
            return
        for name, what in (("answer_spread", "answers"), ("spread", "features of a layer")):
            start, late = self._levels(one, name)
            if late < self.alike and late < self.fallen * start:
                text = f"they differ by {late:.2g} of their size between samples, {start:.2g} at first"
                yield self._finding(one, "collapsed", f"the model's {what} are the same whatever the input", text)
                return
        (start, late), (_, wanted) = self._levels(one, "answer_spread"), self._levels(one, "wanted_spread")
        if late < self.less * wanted and late < 2 * self.fallen * start:
            text = f"answers differ by {late:.2g} of their size between samples, targets by {wanted:.2g}"
            yield self._finding(one, "collapsed", "the model's answers are nearly the same whatever the input", text)
            return
        start, late = self._levels(one, "directions")
        if late < self.line and start > 2 * self.line:
            text = f"features differ in {late:.1f} directions, {start:.1f} at first"
            yield self._finding(one, "on-a-line", "the features of all samples collapse onto a line", text)

    def _levels(self, one: Inspected, name: str) -> tuple[float, float]:
        """At the start and in the end; NaN where too little was seen."""
        seen = np.array([row[name] for row in details(one.training) if name in row])
        if len(seen) < self.least:
            return np.nan, np.nan
        return float(np.max(seen[:3])), float(seen[-1])

    def _finding(self, one: Inspected, kind: str, title: str, text: str) -> Finding:
        return Finding(
            self.code, self.name, kind, self.severity, title, one.subject(float(one.training["step"][-1])), 0.85,
            (one.evidence(text, "detail"),),
            "look for a mask that hides the inputs, a loss term that outweighs the others, a missing `detach()` on "
            "targets, or too high a learning rate",
        )  # fmt: skip
