"""SYS008: training that waits for its data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import numbers
from stethos.diagnose.window import Window
from stethos.store.frame import Array, Frame


@dataclass(frozen=True, slots=True)
class DataLoaderStall:
    """The training waits for its data loader for a large part of its time.

    What it looks at: the share of `data_ms` in `step_ms`, per process, without the first steps.

    Why it matters: the device is idle while it waits; a faster model or a larger machine would not help.

    Not a fault when: steps are so short that nothing is gained (waits below `at_least_ms` are not counted).

    Next step: more workers, `persistent_workers=True`, `pin_memory=True`, decode less in the data set, or cache it.
    """

    code: ClassVar[str] = "SYS008"
    name: ClassVar[str] = "data-loader-stall"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Needs] = {"steps": frozenset({"process", "step_ms", "data_ms"})}
    reads: ClassVar[Needs] = {"steps": frozenset({"step", "rank"})}
    explains: ClassVar[frozenset[str]] = frozenset({"low-utilisation", "rank-straggler"})

    share: float = threshold(0.4, "share of the time that is spent waiting")
    at_least_ms: float = threshold(5.0, "milliseconds of waiting per step")
    steps: int = threshold(30, "steps")
    skip: int = threshold(5, "first steps that are left out")

    def check(self, window: Window) -> Iterator[Finding]:
        for process, frame in window.frame("steps").groups("process").items():
            step_ms, data_ms = frame["step_ms"][self.skip :], frame["data_ms"][self.skip :]
            known = np.isfinite(step_ms) & np.isfinite(data_ms) & (step_ms > 0)
            step_ms, data_ms = step_ms[known], data_ms[known]
            if len(step_ms) < self.steps:
                continue
            share = float(data_ms.sum() / step_ms.sum())
            is_often = float((data_ms > self.share * step_ms).mean()) >= 0.1
            if share >= self.share and data_ms.mean() >= self.at_least_ms and is_often:
                yield self._finding(str(process), frame, step_ms, data_ms, share)

    def _finding(self, process: str, frame: Frame, step_ms: Array, data_ms: Array, share: float) -> Finding:
        ranks = [int(rank) for rank in frame["rank"].tolist()[:1] if rank == rank] if _has_ranks(frame) else []
        return Finding(
            self.code,
            self.name,
            self.name,
            self.severity,
            f"the training waits for its data {share:.0%} of the time" + (f" on rank {ranks[0]}" if ranks else ""),
            Subject(ranks=tuple(ranks), process=process, first=0, unit="step"),
            confidence=0.95,
            evidence=(
                Evidence(
                    f"of {step_ms.mean():.1f} ms per step, {data_ms.mean():.1f} ms are a wait for the data loader: "
                    f"steps would be {share:.0%} shorter if batches were ready in time",
                    "SELECT process, avg(step_ms) AS step_ms, avg(data_ms) AS data_ms, avg(forward_ms) AS forward_ms, "
                    "avg(backward_ms) AS backward_ms FROM steps GROUP BY process",
                    numbers(data_ms),
                    numbers(step_ms),
                    ("waiting", "whole step"),
                ),
            ),
            next_step="give the DataLoader more workers (num_workers=, persistent_workers=True), or cache samples",
            detail={"share": share},
        )


def _has_ranks(frame: Frame) -> bool:
    return "rank" in frame and frame["rank"].dtype.kind == "f"
