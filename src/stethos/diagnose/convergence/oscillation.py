"""CON002: the loss swings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.curve import CLIENT_COLUMNS, ROUND_COLUMNS, Curve, curves_of
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.training import STEP_COLUMNS, sureness
from stethos.diagnose.window import Array, Window


@dataclass(frozen=True, slots=True)
class Oscillation:
    """The loss swings up and down in a regular beat and gets nowhere.

    What it looks at: the loss without its trend, in the second half of the training. A swing has a period: half a
    period later the loss is on the other side, a whole one later on the same. Noise of small batches has none, and a
    fast descent changes its sign nowhere.
    Why it matters: each step jumps over the valley, so that the mean loss stays high.
    Not a fault when: the learning rate is cycled on purpose.
    Next step: halve the learning rate, or lower the momentum.
    """

    code: ClassVar = "CON002"
    name: ClassVar = "oscillation"
    severity: ClassVar = Severity.WARNING
    needs: ClassVar = {"steps": frozenset({"step", "loss"})}
    reads: ClassVar = {"steps": STEP_COLUMNS, "rounds": ROUND_COLUMNS, "client_rounds": CLIENT_COLUMNS}
    explains: ClassVar = frozenset({"series-anomaly", "plateau"})

    beat: float = 0.5
    swing: float = 0.2
    of_first_loss: float = 0.05
    least: int = 12

    def check(self, window: Window) -> Iterator[Finding]:
        for curve in curves_of(window):
            if len(curve.finite) >= self.least and not (curve.training is not None and curve.training.has_rival):
                yield from self._check(curve)

    def _check(self, curve: Curve) -> Iterator[Finding]:
        tail = curve.finite[-max(self.least, len(curve.finite) // 2) :]
        width = min(len(tail) // 2, 60)
        rest = tail - _moving_mean(tail, width)
        spread = float(rest.std())
        level = float(np.abs(tail).mean())
        if not spread > 0 or spread < self.swing * level or spread < self.of_first_loss * curve.scale:
            return
        fell = float(np.median(tail[: len(tail) // 4 or 1]) - np.median(tail[-(len(tail) // 4 or 1) :]))
        if fell > spread:
            return
        period, strength = _beat_of(rest, most=min(width, len(tail) // 3))
        if strength < self.beat:
            return
        first = int(curve.at[np.isfinite(curve.values)][-len(tail)])
        yield Finding(
            self.code, self.name, self.name, self.severity,
            f"the loss swings by {spread / level:.0%} around {level:.3g}, every {period} {curve.unit}s",
            curve.subject(first),
            sureness(min(strength / self.beat * 1.5, spread / (self.swing * level))),
            (curve.evidence(f"the same beat again after {period} {curve.unit}s with correlation {strength:.2f}"),),
            "halve the learning rate; with a momentum above 0.9 lower that first",
            {"period": period, "strength": strength, "swing": spread / level},
        )  # fmt: skip


def _moving_mean(values: Array, width: int) -> Array:
    width = max(3, width | 1)
    padded = np.pad(values, width // 2, mode="edge")
    mean: Array = np.convolve(padded, np.ones(width) / width, mode="valid")
    return mean


def _beat_of(rest: Array, most: int) -> tuple[int, float]:
    """The period after which the series resembles itself, and how much, if half of it turns it round."""
    rest = rest - rest.mean()
    power = float(np.square(rest).sum())
    best = (0, 0.0)
    for period in range(2, most + 1):
        half = period // 2
        same = float((rest[period:] * rest[:-period]).sum()) / power * len(rest) / (len(rest) - period)
        turned = -float((rest[half:] * rest[:-half]).sum()) / power * len(rest) / (len(rest) - half)
        strength = min(same, turned)
        if strength > best[1] + 0.05:
            best = period, strength
    return best
