"""SYS010: a machine that will run out of memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.system.trend import trend_of
from stethos.diagnose.turn import numbers
from stethos.diagnose.window import Window
from stethos.profile.column import median_of
from stethos.store.frame import Frame
from stethos.store.literal import literal


@dataclass(frozen=True, slots=True)
class OutOfMemoryRisk:
    """The machine or a GPU is running out of memory, now or soon at the current rate.

    What it looks at: the memory available on the machine, sampled each second, and the growth of the process. On a
    GPU: the growth of the tensor memory of its steps, and how much the GPU has beyond what is in use.

    Why it matters: when memory runs out, the system kills a process without a message.

    Not a fault when: the last samples show a peak that is over, such as a checkpoint being written.

    Next step: reduce the batch size or the workers; checkpoint now.
    """

    code: ClassVar[str] = "SYS010"
    name: ClassVar[str] = "out-of-memory-risk"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"host": frozenset({"process", "t_ns", "rss_bytes", "machine_free_bytes"})}
    reads: ClassVar[Needs] = {
        "gpu": frozenset({"process", "t_ns", "used_bytes", "total_bytes"}),
        "steps": frozenset({"process", "t_ns", "allocated_bytes"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset()

    samples: int = threshold(60, "samples of the memory")
    free_share: float = threshold(0.05, "share of the memory that is free")
    within_s: float = threshold(3600.0, "seconds until it runs out, at the current rate")
    growth: float = threshold(0.1, "growth since the start, as a share")
    rising: float = threshold(0.8, "share of the samples that are higher than those before")

    def check(self, window: Window) -> Iterator[Finding]:
        worst: Finding | None = None
        for process, frame in window.frame("host").groups("process").items():
            found = self._of_process(str(process), frame, is_live=window.is_live)
            if found is not None and (worst is None or found.severity > worst.severity):
                worst = found
        if worst is not None:  # the machine's memory is one: one finding, about the process that matters most
            yield worst
        if window.is_live and window.has("gpu", self.reads["gpu"]) and window.has("steps", self.reads["steps"]):
            steps = window.frame("steps").groups("process")
            for process, frame in window.frame("gpu").groups("process").items():
                yield from self._of_gpu(str(process), frame.sorted_by("t_ns"), steps.get(process))

    def _of_gpu(self, process: str, frame: Frame, steps: Frame | None) -> Iterator[Finding]:
        """A GPU is full of cached memory as a rule: only tensors that keep growing tell when it is over."""
        if steps is None:
            return
        trend = trend_of(Frame({"t_ns": steps["t_ns"], "rss_bytes": steps["allocated_bytes"]}), self.samples)
        total = median_of(frame["total_bytes"][-5:])
        if trend is None or trend.rising < self.rising or trend.grown_bytes <= self.growth * trend.start_bytes:
            return
        left = total - trend.end_bytes
        left_s = left / trend.bytes_per_s if trend.bytes_per_s > 0 else math.inf
        if left_s > self.within_s:
            return
        yield Finding(
            self.code,
            self.name,
            self.name,
            Severity.ERROR if left_s < self.within_s / 6 else self.severity,
            f"the GPU's memory runs out in {left_s / 60:,.0f} minutes: tensors have {trend.end_bytes / 1e9:.1f} of "
            f"{total / 1e9:.1f} GB",
            Subject(process=process, first=trend.first_s, unit="second"),
            confidence=0.8,
            evidence=(
                Evidence(
                    f"its tensors grew from {trend.start_bytes / 1e9:.2f} to {trend.end_bytes / 1e9:.2f} GB "
                    f"in {trend.duration_s:,.0f} s",
                    f"SELECT t_ns, allocated_bytes, peak_bytes FROM steps "
                    f"WHERE process = {literal(process)} ORDER BY step",
                    trend.series,
                ),
            ),
            next_step="write a checkpoint now; then see `SELECT * FROM memory WHERE line IS NOT NULL`",
            detail={"left_bytes": left, "left_s": left_s},
        )

    def _of_process(self, process: str, frame: Frame, *, is_live: bool) -> Finding | None:
        frame = frame.sorted_by("t_ns")
        free, rss = frame["machine_free_bytes"], frame["rss_bytes"]
        recent = median_of(free[-5:])
        total = recent + median_of(rss[-5:])
        trend = trend_of(frame, self.samples)
        left_s = math.inf
        if trend is not None and trend.bytes_per_s > 0 and trend.rising >= self.rising:
            left_s = recent / trend.bytes_per_s if trend.grown_bytes > self.growth * trend.start_bytes else math.inf
        is_low = len(free) >= 5 and recent < self.free_share * total
        if not is_low and not (is_live and left_s < self.within_s):
            return None
        forecast = f"memory runs out in {left_s / 60:,.0f} minutes" if left_s < self.within_s else "memory is short"
        return Finding(
            self.code,
            self.name,
            self.name,
            Severity.ERROR if is_live and (is_low or left_s < self.within_s / 6) else self.severity,
            f"{forecast}: {recent / 1e9:.1f} GB left on the machine",
            Subject(process=process, first=int((frame["t_ns"][-1] - frame["t_ns"][0]) / 1e9), unit="second"),
            confidence=0.9 if is_low else 0.8,
            evidence=(
                Evidence(
                    f"{recent / 1e9:.2f} GB are available; process {process} has {median_of(rss[-5:]) / 1e9:.2f} GB",
                    f"SELECT t_ns, rss_bytes, machine_free_bytes FROM host "
                    f"WHERE process = {literal(process)} ORDER BY t_ns",
                    numbers(free),
                    names=("free memory",),
                ),
            ),
            next_step="write a checkpoint now; then a smaller batch, fewer data-loader workers, or the leak",
            detail={"free_bytes": recent, "left_s": None if math.isinf(left_s) else left_s},
        )
