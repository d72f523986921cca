"""PRG011: graphs of earlier steps that are never freed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, NEEDS, Inspected, details, inspected_of, merge_ranks
from stethos.diagnose.training import STEP_COLUMNS
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class GrowingGraph:
    """Something holds on to the graphs of earlier losses, or each loss reaches back through all earlier steps.

    What it looks at: how many of the last inspected losses still have their graph, and how many operations lie behind
    each loss.
    Why it matters: memory grows with every step, and in the second case the time of a step as well.
    Not a fault when: gradients through the whole history are intended.
    Next step: keep `loss.item()` or `loss.detach()` instead of the loss, and `detach()` a state carried over.
    """

    code: ClassVar[str] = "PRG011"
    name: ClassVar[str] = "growing-graph"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset({"memory-growth", "out-of-memory-risk", "series-anomaly"})

    kept: int = threshold(6, "graphs of earlier losses that are alive")
    growth: float = threshold(2.0, "times the operations behind the first inspected loss")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            rows = details(one.training)
            kept = np.array([row.get("kept", 0) for row in rows])
            nodes = np.array([row.get("nodes", 0) for row in rows], float)
            if len(kept) > self.kept and kept.max() >= self.kept and kept[-1] >= self.kept:
                yield self._finding(
                    one, "kept-graphs", "the program keeps the graphs of earlier losses, so memory grows",
                    f"{kept[-1]} graphs of earlier losses were alive at an inspected backward",
                    "keep numbers instead: `loss.item()`, `output.detach()`",
                )  # fmt: skip
            elif len(nodes) > self.kept and (np.diff(nodes) > 0).all() and nodes[-1] > self.growth * nodes[0] > 0:
                yield self._finding(
                    one, "growing-history", "each backward goes through all earlier steps: its graph grows",
                    f"{nodes[0]:.0f} operations behind the first inspected loss, {nodes[-1]:.0f} behind the last",
                    "call `detach()` on the state that is carried from step to step",
                )  # fmt: skip

    def _finding(self, one: Inspected, kind: str, title: str, text: str, advice: str) -> Finding:
        subject = one.subject(float(one.training["step"][0]))
        evidence = one.evidence(text, "detail")
        return Finding(self.code, self.name, kind, self.severity, title, subject, 0.93, (evidence,), advice)
