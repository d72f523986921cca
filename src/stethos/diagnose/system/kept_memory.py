"""Tensors that outlive their steps: which line makes them, and who keeps them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stethos.diagnose.finding import Evidence
from stethos.diagnose.window import Window
from stethos.store.literal import literal

KEPT_COLUMNS = frozenset({"process", "step", "line", "holder", "allocated_bytes"})
LEAST_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class KeptMemory:
    """What one line of the program leaves behind at every step; `holder` is what keeps it, "" if unknown."""

    line: str
    holder: str
    step_bytes: float
    steps: float
    samples: int
    process: str

    @property
    def grown_bytes(self) -> float:
        """All that it has left so far, as far as the sampled steps speak for the others."""
        return self.step_bytes * self.steps

    @property
    def words(self) -> str:
        kept = f", kept by {self.holder}" if self.holder else ""
        return f"tensors made at {self.line} stay alive{kept}"

    @property
    def evidence(self) -> Evidence:
        return Evidence(
            f"{self.words}: {self.step_bytes:,.0f} bytes of each step, in {self.samples} sampled steps",
            f"SELECT step, line, holder, allocated_bytes, bytes, count FROM memory WHERE line IS NOT NULL "
            f"AND process = {literal(self.process)} ORDER BY step, bytes DESC",
            (),
        )


def kept_in(window: Window, process: str, samples: int = LEAST_SAMPLES) -> KeptMemory | None:
    """The line that leaves most behind, if it does so in that many samples."""
    frame = window.frame("memory")
    if not len(frame) or not KEPT_COLUMNS.issubset(frame.names):
        return None
    rows = [
        (line, str(holder or ""), float(size), float(step))
        for owner, line, holder, size, step in zip(
            *(frame[name].tolist() for name in ("process", "line", "holder", "allocated_bytes", "step")), strict=True
        )
        if owner == process and isinstance(line, str) and np.isfinite(size)
    ]
    steps = [step for *_, step in rows]
    best: KeptMemory | None = None
    for line in dict.fromkeys(line for line, *_ in rows):
        mine = [row for row in rows if row[0] == line]
        holder = next((text for _, text, *_ in reversed(mine) if text), "")
        found = KeptMemory(
            line, holder, float(np.median([size for *_, size, _ in mine])), max(steps), len(mine), process
        )
        if len(mine) >= samples and (best is None or found.step_bytes > best.step_bytes):
            best = found
    return best
