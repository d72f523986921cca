"""CON003: the loss falls, but hardly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.curve import CURVE_READS, Curve, curves_to_judge
from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.training import sureness
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class SlowProgress:
    """The loss falls steadily, but so slowly that the training will not get far.

    What it looks at: the slope of the loss against its noise, and how much of the first loss was gained so far.
    Why it matters: the model can learn, but takes steps that are too small, or too few.
    Not a fault when: the training has just begun, or continues from a trained model. A loss that has fallen by a tenth
    or more shows that the model learns; that it is not finished is reported as info.
    Next step: raise the learning rate tenfold, and see whether the loss falls faster.
    """

    code: ClassVar[str] = "CON003"
    name: ClassVar[str] = "slow-progress"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"steps": frozenset({"step", "loss"})}
    reads: ClassVar[Needs] = CURVE_READS
    explains: ClassVar[frozenset[str]] = frozenset({"plateau"})

    gained: float = threshold(0.2, "fall of the loss, as a share, below which progress is slow")
    hardly: float = threshold(0.1, "the same, below which it is a warning")
    learned: float = threshold(0.5, "fall from which on a training counts as one that learns, in a search for settings")
    surely: float = threshold(5.0, "standard errors by which the loss falls")
    still: float = threshold(0.3, "share of the first third's fall that the last third still makes")
    least_steps: int = threshold(100, "steps")
    least_rounds: int = threshold(30, "rounds, for a federation")
    floor: float = threshold(0.2, "loss below which nothing is said")

    def check(self, window: Window) -> Iterator[Finding]:
        curves = list(curves_to_judge(window, self.least_steps, self.least_rounds))
        is_search = sum(curve.fall > self.learned for curve in curves) >= 2  # of settings, some of which learn slowly
        for curve in curves:
            yield from self._check(curve, is_search)

    def _check(self, curve: Curve, is_search: bool) -> Iterator[Finding]:
        if curve.may_rise or curve.end < self.floor:
            return
        steady = slope_of(curve)
        if steady > -self.surely or not 0 < curve.fall < self.gained:  # one thrown up may creep down
            return
        third = max(1, len(curve.levels) // 3)
        early = float(curve.levels[:third].mean() - curve.levels[third : 2 * third].mean())
        late = float(curve.levels[third : 2 * third].mean() - curve.levels[-third:].mean())
        if not late > self.still * early or not late > 0:
            return
        is_harmful = curve.fall < self.hardly and not is_search
        yield Finding(
            self.code, self.name, self.name, self.severity if is_harmful else Severity.INFO,
            f"the loss fell by only {curve.fall:.1%} in {curve.length_text}, and steadily",
            curve.subject(int(curve.at[0])),
            sureness(min(self.gained / max(curve.fall, 1e-6), -steady / self.surely * 2)),
            (curve.evidence(f"from {curve.start:.4g} to {curve.end:.4g}, slope {steady:.0f} standard errors"),),
            "raise the learning rate tenfold and compare; or train longer",
            {"start": curve.start, "end": curve.end, "slope": steady},
        )  # fmt: skip


def slope_of(curve: Curve) -> float:
    """The slope of the loss in standard errors; negative where it falls."""
    middle = float(np.median(curve.finite))
    reach = 10 * max(float(np.median(np.abs(curve.finite - middle))), curve.noise)
    values = np.clip(curve.finite, middle - reach, middle + reach)  # a broken batch is no slope
    place = np.arange(len(values)) - (len(values) - 1) / 2
    weight = float(np.square(place).sum())
    slope = float((place * values).sum()) / weight
    spread = float(np.median(np.abs(values - np.median(values)))) * 1.48
    noise = max(curve.noise, 1e-3 * spread, 1e-15)
    return slope * float(weight**0.5) / noise
