"""A GPU that waits for its program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.performance.path import STEPS_READ, finding_of, steps_in
from stethos.diagnose.turn import numbers
from stethos.diagnose.window import Window
from stethos.profile.bottleneck import launch_bottleneck


@dataclass(frozen=True, slots=True)
class LaunchBound:
    """The GPU is idle much of the time although steps do not wait for data: it waits to be told what to do.

    What it looks at: the share of time in which a kernel ran, on GPUs that the training uses, and the length of steps.

    Why it matters: launching a kernel takes the program some microseconds; with many small kernels the GPU finishes
    each before the next one comes.

    Not a fault when: the step is so short because the model is small, and nobody waits for it.

    Next step: larger batches, `torch.compile`, CUDA graphs, or `fused=True` for the optimizer.
    """

    code: ClassVar[str] = "PRF006"
    name: ClassVar[str] = "launch-bound"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Needs] = {
        "steps": frozenset({"process", "step_ms"}),
        "gpu": frozenset({"device", "busy_share"}),
    }
    reads: ClassVar[Needs] = STEPS_READ
    explains: ClassVar[frozenset[str]] = frozenset()

    busy: float = 0.5
    step_ms: float = 50.0
    samples: int = 10

    def check(self, window: Window) -> Iterator[Finding]:
        frame = window.frame("gpu")
        if not len(frame) or "busy_share" not in frame or frame["busy_share"].dtype.kind != "f":
            return
        busy = frame["busy_share"][np.isfinite(frame["busy_share"])]
        if len(busy) < self.samples:
            return
        found = launch_bottleneck(steps_in(window), [{"busy_share": float(busy.mean())}], self.busy, self.step_ms)
        if found is not None:
            yield finding_of(self, found, first=0, unit="step", confidence=0.7, series=numbers(busy))
