"""SYS009: a process whose memory keeps growing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.system.kept_memory import KEPT_COLUMNS, LEAST_SAMPLES, KeptMemory, kept_in
from stethos.diagnose.system.trend import Trend, trend_of
from stethos.diagnose.window import Window
from stethos.store.frame import Frame
from stethos.store.literal import literal

_SOONER = 3  # times, where a line of the program is known to keep tensors
_PART = 0.1  # of the growth, at least, for that line to be named


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """The memory of a process keeps growing long after its start.

    What it looks at: resident memory, sampled each second from outside, since the first step of a process that has
    one, as packages and data are loaded before. The second half of that time is cut into stretches; it grows if nearly
    every stretch is above the one before. And tensors that outlive the sampled steps in which they were made (`memory`
    by line): they name the line, and are a separate finding once they add up. Where both agree, a third of the
    samples and a tenth of the growth are enough.

    Why it matters: a leak ends in a killed process, usually at night. Typical are losses or outputs kept in a list
    with their graph (`losses.append(loss)` instead of `loss.item()`), caches without a bound, and data sets that are
    copied page by page into each worker.

    Not a fault when: the data set is being cached on purpose, and fits.

    Next step: the line that is named, and what keeps its tensors; else look for what is kept across steps.
    """

    code: ClassVar[str] = "SYS009"
    name: ClassVar[str] = "memory-growth"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"host": frozenset({"process", "t_ns", "rss_bytes"})}
    reads: ClassVar[Needs] = {
        "host": frozenset({"machine_free_bytes"}),
        "memory": KEPT_COLUMNS,
        "steps": frozenset({"process", "t_ns"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset({"out-of-memory-risk"})

    samples: int = threshold(60, "samples of the memory")
    growth: float = threshold(0.1, "growth since the start, as a share")
    at_least_bytes: float = threshold(200e6, "bytes by which it has grown; a tenth where the growing line is known")
    rising: float = threshold(0.8, "share of the samples that are higher than those before")

    def check(self, window: Window) -> Iterator[Finding]:
        for process, whole in window.frame("host").groups("process").items():
            frame = _while_it_steps(window, process, whole)
            kept, trend = kept_in(window, str(process), 1), trend_of(frame, round(self.samples / _SOONER))
            if kept is not None and trend is not None and kept.grown_bytes < _PART * trend.grown_bytes:
                kept = None  # a list of losses is not what grows here
            if kept is None:
                trend = trend_of(frame, self.samples)
            if trend is None or trend.rising < self.rising or trend.grown_bytes < self._least(trend, kept is not None):
                if kept is not None and kept.samples >= LEAST_SAMPLES and kept.grown_bytes >= self._most(whole):
                    yield self._of_kept(str(process), kept)
                continue
            where = "" if kept is None else f": {kept.words}"
            yield Finding(
                self.code,
                self.name,
                self.name,
                self.severity,
                f"memory of process {process} grows by {trend.bytes_per_s * 60 / 1e6:,.0f} MB a minute{where}",
                Subject(process=str(process), first=trend.first_s, unit="second"),
                confidence=0.9,
                evidence=(
                    Evidence(
                        f"from {trend.start_bytes / 1e9:.2f} GB to {trend.end_bytes / 1e9:.2f} GB "
                        f"in {trend.duration_s:,.0f} s, in {trend.rising:.0%} of the stretches between",
                        f"SELECT t_ns, rss_bytes, machine_free_bytes FROM host "
                        f"WHERE process = {literal(str(process))} ORDER BY t_ns",
                        trend.series,
                    ),
                    *(() if kept is None else (kept.evidence,)),
                ),
                next_step=_next_step(kept),
                detail={"bytes_per_s": trend.bytes_per_s, **_place(kept)},
            )

    def _least(self, trend: Trend, has_line: bool) -> float:
        return max(self.at_least_bytes * (0.1 if has_line else 1.0), self.growth * trend.start_bytes)

    def _most(self, frame: Frame) -> float:
        """What a line has to leave behind to be a finding of its own."""
        return max(self.at_least_bytes, self.growth * float(np.nanmin(frame["rss_bytes"])))

    def _of_kept(self, process: str, kept: KeptMemory) -> Finding:
        """Tensors add up to much before the process has been watched for long."""
        return Finding(
            self.code,
            self.name,
            self.name,
            self.severity,
            f"{kept.words}: about {kept.grown_bytes / 1e6:,.0f} MB so far",
            Subject(process=process, unit="step"),
            confidence=0.85,
            evidence=(kept.evidence,),
            next_step=_next_step(kept),
            detail={"bytes_per_step": kept.step_bytes, **_place(kept)},
        )


def _while_it_steps(window: Window, process: object, frame: Frame) -> Frame:
    """What was seen between the first and the last step: loading before and teardown after are no trend."""
    steps = window.frame("steps")
    if not len(steps) or "t_ns" not in steps:
        return frame
    own = steps["t_ns"][steps["process"] == process]
    if not np.isfinite(own).any():
        return frame
    inside = frame.where((frame["t_ns"] >= np.nanmin(own)) & (frame["t_ns"] <= np.nanmax(own)))
    return inside if len(inside) else frame


def _place(kept: KeptMemory | None) -> dict[str, str]:
    return {} if kept is None else {"line": kept.line, "holder": kept.holder}


def _next_step(kept: KeptMemory | None) -> str:
    if kept is None:
        return "look for what is kept across steps: losses with their graph, outputs in lists, caches"
    return f"keep numbers instead of tensors (`.item()`, `.detach()`), or fewer of them: see {kept.holder or kept.line}"
