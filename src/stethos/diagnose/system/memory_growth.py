"""A process whose memory keeps growing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.system.trend import trend_of
from stethos.diagnose.turn import sql_text
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """The memory of a process keeps growing, long after the start.

    What it looks at: resident memory, sampled each second from outside. The second half of the run is cut into
    stretches; it grows if nearly every stretch is above the one before.

    Why it matters: a leak ends in a killed process, usually at night. Typical are losses or outputs kept in a list
    with their graph (`losses.append(loss)` instead of `loss.item()`), caches without a bound, and data sets that are
    copied page by page into each worker.

    Not a fault when: the data set is being cached on purpose, and fits.

    Next step: look for what is kept across steps; compare with the growth per step.
    """

    code: ClassVar[str] = "SYS009"
    name: ClassVar[str] = "memory-growth"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"host": frozenset({"process", "t_ns", "rss_bytes"})}
    reads: ClassVar[Needs] = {"host": frozenset({"machine_free_bytes"})}
    explains: ClassVar[frozenset[str]] = frozenset({"out-of-memory-risk"})

    samples: int = 60
    growth: float = 0.1
    at_least_bytes: float = 200e6
    rising: float = 0.8

    def check(self, window: Window) -> Iterator[Finding]:
        for process, frame in window.frame("host").groups("process").items():
            trend = trend_of(frame, self.samples)
            if trend is None or trend.rising < self.rising:
                continue
            if trend.grown_bytes < max(self.at_least_bytes, self.growth * trend.start_bytes):
                continue
            yield Finding(
                self.code,
                self.name,
                self.name,
                self.severity,
                f"memory of process {process} grows by {trend.bytes_per_s * 60 / 1e6:,.0f} MB a minute",
                Subject(process=str(process), first=trend.first_s, unit="second"),
                confidence=0.9,
                evidence=(
                    Evidence(
                        f"from {trend.start_bytes / 1e9:.2f} GB to {trend.end_bytes / 1e9:.2f} GB "
                        f"in {trend.duration_s:,.0f} s, in {trend.rising:.0%} of the stretches between",
                        f"SELECT t_ns, rss_bytes, machine_free_bytes FROM host "
                        f"WHERE process = {sql_text(str(process))} ORDER BY t_ns",
                        trend.series,
                    ),
                ),
                next_step="look for what is kept across steps: losses with their graph, outputs in lists, caches",
                detail={"bytes_per_s": trend.bytes_per_s},
            )
