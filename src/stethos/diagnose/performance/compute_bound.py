"""Steps that do nothing but compute."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.performance.path import STEPS_READ, steps_in
from stethos.diagnose.window import Window
from stethos.profile.step_time import inside_of


@dataclass(frozen=True, slots=True)
class ComputeBound:
    """Steps spend nearly all their time in forward and backward.

    What it looks at: the share of `forward_ms` and `backward_ms` in `step_ms`, per process, where steps are long enough
    for that to matter. On a CPU, sampled modules tell whether that time is spent in the model at all.

    Why it matters: it says where not to look: data, network and optimizer are fast enough. What helps is less to
    compute, or a faster way to do it.

    Not a fault when: ever; this is how it should be. It is said so that nobody tunes the data loader.

    Next step: see which modules take the time with `stethos profile --by module`; try mixed precision or
    `torch.compile`.
    """

    code: ClassVar[str] = "PRF001"
    name: ClassVar[str] = "compute-bound"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Needs] = {"steps": frozenset({"process", "step_ms", "forward_ms", "backward_ms"})}
    reads: ClassVar[Needs] = {
        "steps": STEPS_READ["steps"] | {"model"},
        "modules": frozenset({"process", "step", "module", "stage", "duration_ms"}),
        "memory": frozenset({"process", "device"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset()

    share: float = 0.9
    at_least_ms: float = 50.0
    steps: int = 100
    inside: float = 0.5

    def check(self, window: Window) -> Iterator[Finding]:
        for one in steps_in(window):
            part = one.share("forward", "backward")
            if one.steps < self.steps or one.mean_ms < self.at_least_ms or not part >= self.share or math.isnan(part):
                continue
            if window.derive(_inside).get(one.process, 1.0) < self.inside:
                continue  # most of forward is the program's own code, which `stethos profile` names
            yield Finding(
                self.code,
                self.name,
                self.name,
                self.severity,
                f"steps are compute-bound: {part:.0%} of {one.mean_ms:,.0f} ms are forward and backward",
                Subject(process=one.process, first=0, unit="step"),
                confidence=0.9,
                evidence=(
                    Evidence(
                        f"{one.parts['forward'] or 0.0:,.1f} ms forward and {one.parts['backward'] or 0.0:,.1f} ms "
                        f"backward per step, over {one.steps:,} steps",
                        "SELECT process, avg(forward_ms) AS forward_ms, avg(backward_ms) AS backward_ms, "
                        "avg(step_ms) AS step_ms FROM steps GROUP BY process",
                    ),
                ),
                next_step="see which modules take the time: `stethos profile --by module`",
                detail={"share": part},
            )


def _inside(window: Window) -> dict[str, float]:
    """Of forward, the share inside the model, by process; not those on a GPU, where modules are timed by the host."""
    memory = window.frame("memory")
    columns = [memory[name].tolist() for name in ("process", "device")] if len(memory) else [[], []]
    on_gpu = {name for name, device in zip(*columns, strict=True) if isinstance(device, str) and device != "cpu"}
    found = inside_of(window.frame("steps"), window.frame("modules"))
    return {name: share for name, share in found.items() if name not in on_gpu}
