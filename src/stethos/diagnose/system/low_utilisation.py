"""SYS014: processes that mostly wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import numbers
from stethos.diagnose.window import Window
from stethos.profile.column import median_of
from stethos.store.frame import Frame
from stethos.store.literal import literal


@dataclass(frozen=True, slots=True)
class LowUtilisation:
    """A training process uses little of its processor.

    What it looks at: cores in use by the process, sampled each second while it makes steps, on a machine that is not
    busy otherwise.

    Why it matters: the process waits for something: data, the network, other ranks, a lock, a sleep.

    Not a fault when: the work is done on a GPU by few large kernels, or the process is a server that waits for its
    clients.

    Next step: see where a step's time goes: `stethos query "SELECT avg(data_ms), avg(forward_ms), avg(backward_ms),
    avg(step_ms) FROM steps"`.
    """

    code: ClassVar[str] = "SYS014"
    name: ClassVar[str] = "low-utilisation"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Needs] = {
        "host": frozenset({"process", "t_ns", "cpu_share"}),
        "steps": frozenset({"process", "t_ns"}),
    }
    reads: ClassVar[Needs] = {"host": frozenset({"machine_cpu_share"})}
    explains: ClassVar[frozenset[str]] = frozenset()

    cores: float = threshold(0.3, "processor cores that it uses")
    samples: int = threshold(30, "samples of the processor")
    machine: float = threshold(0.7, "share of the machine's processor from which on others take it")

    def check(self, window: Window) -> Iterator[Finding]:
        steps = window.frame("steps").groups("process")
        for process, frame in window.frame("host").groups("process").items():
            if process not in steps:
                continue
            times_ns = steps[process]["t_ns"]
            during = (frame["t_ns"] >= times_ns.min()) & (frame["t_ns"] <= times_ns.max())
            share = frame["cpu_share"][during & np.isfinite(frame["cpu_share"])]
            if len(share) < self.samples or median_of(share) >= self.cores:
                continue
            machine = frame["machine_cpu_share"][during] if _has(frame, "machine_cpu_share") else np.array([])
            if median_of(machine) >= self.machine:  # others take the cores: it would use more if it got more
                continue
            yield Finding(
                self.code,
                self.name,
                self.name,
                self.severity,
                f"process {process} uses {median_of(share):.0%} of one core while it trains: it mostly waits",
                Subject(process=str(process), first=0, unit="step"),
                confidence=0.8,
                evidence=(
                    Evidence(
                        f"{len(share)} samples between its first and its last step",
                        f"SELECT t_ns, cpu_share, machine_cpu_share FROM host WHERE process = {literal(str(process))} "
                        "ORDER BY t_ns",
                        numbers(share),
                        names=("busy",),
                    ),
                ),
                next_step="see where a step's time goes: avg(data_ms), avg(forward_ms), avg(backward_ms) FROM steps",
            )


def _has(frame: Frame, name: str) -> bool:
    return name in frame and frame[name].dtype.kind == "f"
