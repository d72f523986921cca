"""Intervals for series whose neighbours resemble each other: the circular block bootstrap.

Rounds and steps are no independent draws, so whole stretches of neighbours are drawn. Their length follows the
correlation of neighbours (Carlstein's rule for a first-order process). The generator is our own, and seeded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stethos.store.frame import Array

FEWEST = 8
_DRAWS = 1000
_MOST_POINTS = 1000
_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A number and the range in which it lies with 95 % confidence; without a range where there is too little."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def is_known(self) -> bool:
        return self.low is not None and self.high is not None


def block_length(values: Array) -> int:
    """How many neighbours are drawn together."""
    count = len(values)
    centred = values - values.mean()
    power = float(np.dot(centred, centred))
    if count < 3 or power <= 0:
        return 1
    correlation = min(0.97, max(0.0, float(np.dot(centred[1:], centred[:-1])) / power))
    length = (2 * correlation / (1 - correlation**2)) ** (2 / 3) * count ** (1 / 3)
    return int(min(max(1, math.ceil(length)), max(1, count // 3)))


def draws_of(values: Array, statistic: Callable[[Array], Array], seed: int) -> Array:
    """The statistic of many resamples; it gets them as rows."""
    count, length = len(values), block_length(values)
    chance = np.random.default_rng([seed, count])
    blocks = math.ceil(count / length)
    starts = chance.integers(0, count, (_DRAWS, blocks, 1))
    places = (starts + np.arange(length)).reshape(_DRAWS, -1)[:, :count] % count
    return statistic(values[places])


def mean_interval(differences: Array) -> Interval:
    """The mean of paired differences."""
    known = thinned(differences[np.isfinite(differences)])
    if not len(known):
        return Interval(math.nan)
    if len(known) < FEWEST:
        return Interval(float(known.mean()))
    return _interval(float(known.mean()), draws_of(known, lambda drawn: np.asarray(drawn.mean(axis=1)), 1))


def log_ratio_of_medians(first: Array, second: Array) -> Interval:
    """The logarithm of the second median over the first, each resampled by itself."""
    one, two = (thinned(values[np.isfinite(values) & (values > 0)]) for values in (first, second))
    if not len(one) or not len(two):
        return Interval(math.nan)
    value = math.log(float(np.median(two)) / float(np.median(one)))
    if min(len(one), len(two)) < FEWEST:
        return Interval(value)
    drawn = [
        np.log(draws_of(part, lambda rows: np.asarray(np.median(rows, axis=1)), seed))
        for seed, part in ((2, one), (3, two))
    ]
    return _interval(value, drawn[1] - drawn[0])


def thinned(values: Array) -> Array:
    """A long series as medians of neighbours, so that resampling stays cheap."""
    if len(values) <= _MOST_POINTS:
        return values
    return np.array([np.median(part) for part in np.array_split(values, _MOST_POINTS)])


def _interval(value: float, drawn: Array) -> Interval:
    low, high = np.quantile(drawn, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(value, min(float(low), value), max(float(high), value))
