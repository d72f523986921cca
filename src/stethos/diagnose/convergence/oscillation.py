"""CON002: the loss swings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from stethos.diagnose.curve import CURVE_READS, Curve, curves_to_judge
from stethos.diagnose.detector import CannotTell, Needs, threshold
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, is_other_task
from stethos.diagnose.training import sureness
from stethos.diagnose.window import Window
from stethos.store.frame import Array

_LEAST_QUARTER = 20  # values
_STILL_ALIKE = 0.25


@dataclass(frozen=True, slots=True)
class Oscillation:
    """The loss swings up and down and gets nowhere.

    What it looks at: the loss without its trend, in the second half of the training. A swing goes there and back
    several times by a tenth of the level or more, and each value resembles the one before (or, if the sign changes at
    every step, its opposite). Large swings also count if they repeat after some steps, as with data sorted by label.
    The noise of small batches does none of this, and a fast descent never reverses. The fewer values there are, the
    more alike they must be: a few resemble each other by chance.
    Why it matters: each step jumps over the valley, so that the mean loss stays high.
    Not a fault when: the learning rate is cycled on purpose. A loss that swings and falls all the same is reported as
    info, and so are a few slight swings. Where each round has different clients, only the global
    model's loss is examined: the clients' own losses depend on who takes part.
    Next step: halve the learning rate, lower the momentum, or shuffle the data.
    """

    code: ClassVar[str] = "CON002"
    name: ClassVar[str] = "oscillation"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"steps": frozenset({"step", "loss"})}
    reads: ClassVar[Needs] = {**CURVE_READS, "inspections": COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset({"plateau"})

    likeness: float = threshold(0.45, "correlation of neighbouring values, on either side of 0")
    repeat: float = threshold(0.5, "correlation after a period, for swings that take longer")
    large: float = threshold(0.2, "swing, as a share of the first loss, from which on any correlation is looked for")
    swing: float = threshold(0.1, "swing as a share of the level")
    of_first_loss: float = threshold(0.05, "swing as a share of the first loss")
    beyond_chance: float = threshold(3.0, "standard errors that a correlation has to lie beyond chance")
    turns: int = threshold(6, "times that the loss turns round")
    still_falls: float = threshold(0.15, "fall between the halves, as a share of the level, that shows that it learns")
    least: int = threshold(12, "values of the loss")

    def check(self, window: Window) -> Iterator[Finding]:
        curves = list(curves_to_judge(window, self.least))
        if curves and all(curve.is_of_others for curve in curves):
            raise CannotTell("each round has other clients, and the global loss was not reported (`rnd.evaluate`)")
        for curve in curves:
            if not curve.may_rise and not curve.is_of_others:
                for found in self._check(curve):
                    is_meant = curve.is_by_step and is_other_task(window, curve.process, found.subject.first or 0)
                    yield replace(found, severity=Severity.INFO) if is_meant else found

    def _check(self, curve: Curve) -> Iterator[Finding]:
        tail = curve.finite[-max(self.least, len(curve.finite) // 2) :]
        width = min(len(tail) // 2, 60)
        rest = tail - _moving_mean(tail, width)
        spread = float(rest.std())
        level = float(np.abs(tail).mean())
        if not spread > 0 or spread < self.swing * level or spread < self.of_first_loss * curve.scale:
            return
        fell = float(tail[: len(tail) // 2].mean() - tail[len(tail) // 2 :].mean())
        likeness = float((rest[1:] * rest[:-1]).sum() / np.square(rest).sum())
        turns, turn = _turns_of(tail, 2 * self.swing * level)
        period = max(2, round(2 * len(tail) / max(turns, 1)))
        needed = max(self.likeness, self.beyond_chance / np.sqrt(len(rest)))  # few values resemble each other by chance
        if abs(likeness) < needed and spread > self.large * curve.scale:
            period, likeness = _repeat_of(rest)
            likeness *= self.likeness / self.repeat
            needed = max(self.likeness, self.beyond_chance / np.sqrt(len(rest) - period))
        if fell > spread or abs(likeness) < needed or turns < self.turns or not _goes_on(tail, period):
            return
        first = int(curve.at[np.isfinite(curve.values)][-len(tail) + turn])
        is_learning = fell > max(self.still_falls * level, 4 * spread / np.sqrt(len(tail) / 2))
        is_slight = spread < 2 * self.swing * level and turns < 2 * self.turns
        yield Finding(
            self.code, self.name, self.name, Severity.INFO if is_learning or is_slight else self.severity,
            f"the loss swings by {spread / level:.0%} around {level:.3g}, about every {period} {curve.value_unit}s",
            curve.subject(first),
            sureness(min(turns / self.turns, spread / (self.swing * level), abs(likeness) / self.likeness * 1.5)),
            (curve.evidence(f"{turns} turns; neighbours resemble each other by {likeness:.2f}"),),
            "halve the learning rate, with a momentum above 0.9 lower that first; shuffle the data if they are sorted",
            {"period": period, "turns": turns, "likeness": likeness, "swing": spread / level},
        )  # fmt: skip


def _goes_on(tail: Array, period: int) -> bool:
    """Whether a swing does not come from one jump alone: it is seen in the quieter half of the quarters as well."""
    quarters = np.array_split(tail, 4)
    if len(quarters[0]) < max(_LEAST_QUARTER, 2 * period):
        return True
    level = [one - np.polyval(np.polyfit(np.arange(len(one)), one, 1), np.arange(len(one))) for one in quarters]
    quiet = sorted(level, key=lambda one: float(np.square(one).sum()))[:2]
    alike = [abs(sum(float((one[lag:] * one[:-lag]).sum()) for one in quiet)) for lag in (1, period)]
    return max(alike) > _STILL_ALIKE * sum(float(np.square(one).sum()) for one in quiet)


def _moving_mean(values: Array, width: int) -> Array:
    width = max(3, width | 1)
    padded = np.pad(values, width // 2, mode="median", stat_length=5)  # one odd value at an end is not the trend
    mean: Array = np.convolve(padded, np.ones(width) / width, mode="valid")
    return mean


def _turns_of(values: Array, least: float) -> tuple[int, int]:
    """How often a series turns round after having gone by at least so much, and where first."""
    turns, first, extreme, is_rising = 0, 0, float(values[0]), True
    for place, value in enumerate(values.tolist()):
        if (value > extreme) == is_rising:
            extreme = value
        elif abs(value - extreme) > least:
            first = first if turns else place
            turns, extreme, is_rising = turns + 1, value, not is_rising
    return turns, first


def _repeat_of(rest: Array) -> tuple[int, float]:
    """After how many values a series resembles itself most, and how much: three times at least."""
    spread = float(np.square(rest).mean())
    lags = range(3, len(rest) // 3)
    likeness = [float((rest[lag:] * rest[:-lag]).mean()) / spread for lag in lags]
    best = int(np.argmax(likeness)) if likeness else 0
    return (lags[best], likeness[best]) if likeness else (0, 0.0)
