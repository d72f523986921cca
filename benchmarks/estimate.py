"""Medians, and how far they can be trusted."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_RESAMPLES = 2000
_FEWEST = 3


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third; of a single value, that value twice."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of medians with the interval in which 95 % of its bootstrap lies; too few pairs have none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        return f"{self.value:.3f}"

    @property
    def interval(self) -> str:
        return "" if math.isnan(self.low) else f"{self.low:.3f} to {self.high:.3f}"


def ratio_of(values: Sequence[float], bases: Sequence[float]) -> Ratio:
    """How much larger `values` are; the two come in pairs, one of each per round, and are resampled as pairs.

    What slows a whole round down then slows both, and does not count as a difference.
    """
    pairs = list(zip(values, bases, strict=False))
    if len(pairs) < _FEWEST:
        return Ratio(_of_medians(pairs))
    draw = random.Random(20)  # the same figures give the same interval
    resampled = sorted(_of_medians(draw.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES))
    return Ratio(_of_medians(pairs), resampled[int(0.025 * _RESAMPLES)], resampled[int(0.975 * _RESAMPLES) - 1])


def _of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    return median([value for value, _ in pairs]) / median([base for _, base in pairs])
