"""SYS012: a process that runs and does nothing."""

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
from stethos.store.literal import literal


@dataclass(frozen=True, slots=True)
class StalledProcess:
    """A process is running, but its training has made no step for a long time.

    What it looks at: the time since the last optimizer step, against the longest pause that this process made before
    and against its usual steps. In a live run the samples of the machine are the clock; in a killed one its end is.

    Why it matters: a hang looks like a running job from outside, and pays for its machines like one.

    Not a fault when: the program evaluates, writes a checkpoint or waits for a round for the first time. Raise
    `at_least_s`.

    Next step: look at its stack: `stethos PID backtrace`; in a distributed job look for the rank that is missing.
    """

    code: ClassVar[str] = "SYS012"
    name: ClassVar[str] = "stalled-process"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"processes": frozenset({"process", "state"}), "steps": frozenset({"process", "t_ns"})}
    reads: ClassVar[Needs] = {
        "processes": frozenset({"pid", "ended_ns"}),
        "host": frozenset({"process", "t_ns"}),
        "steps": frozenset({"step"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset({"low-utilisation"})

    at_least_s: float = threshold(60.0, "seconds without a step")
    times: float = threshold(5.0, "times the longest pause so far")
    step_times: float = threshold(50.0, "times the median step")

    def check(self, window: Window) -> Iterator[Finding]:
        processes = window.frame("processes")
        steps = window.frame("steps").groups("process")
        host = window.frame("host").groups("process") if window.has("host", frozenset({"process", "t_ns"})) else {}
        for process, row in processes.groups("process").items():
            state = row["state"][0]
            if process not in steps or state not in ("running", "killed") or (state == "running") != window.is_live:
                continue
            times_ns = np.sort(steps[process]["t_ns"])
            now_ns = _now_ns(row, host.get(process), state)
            if len(times_ns) < 3 or now_ns is None:
                continue
            pauses = np.diff(times_ns) / 1e9
            silent_s = (now_ns - times_ns[-1]) / 1e9
            limit_s = max(self.at_least_s, self.times * pauses.max(), self.step_times * float(np.median(pauses)))
            if silent_s > limit_s:
                yield self._finding(str(process), row, len(times_ns), silent_s, pauses, state)

    def _finding(self, process: str, row: Frame, steps: int, silent_s: float, pauses: Array, state: str) -> Finding:
        pid = int(row["pid"][0]) if "pid" in row and row["pid"].dtype.kind == "f" else None
        title = f"process {process} has made no step for {silent_s:,.0f} s"
        if state == "killed":
            title = f"process {process} had made no step for {silent_s:,.0f} s when it was killed"
        return Finding(
            self.code,
            self.name,
            self.name,
            self.severity,
            title,
            Subject(process=process, first=steps, unit="step"),
            confidence=0.9,
            evidence=(
                Evidence(
                    f"its {steps:,} steps were {np.median(pauses):.3g} s apart, {pauses.max():.3g} s at most",
                    f"SELECT step, t_ns, step_ms FROM steps WHERE process = {literal(process)} "
                    "ORDER BY t_ns DESC LIMIT 5",
                    numbers([*pauses[-40:], silent_s]),
                    names=("seconds per step",),
                ),
            ),
            next_step=f"look at its stack: stethos {pid} backtrace"
            if state == "running"
            else "look at the log of what it did last; next time: `stethos PID backtrace` while it hangs",
            detail={"silent_s": silent_s, "pid": pid},
        )


def _now_ns(row: Frame, host: Frame | None, state: str) -> float | None:
    """The time up to which a process is known to have run."""
    if state == "killed":
        known = row["ended_ns"] if "ended_ns" in row and row["ended_ns"].dtype.kind == "f" else np.array([])
    else:
        known = host["t_ns"] if host is not None else np.array([])
    known = known[np.isfinite(known)]
    return float(known.max()) if len(known) else None
