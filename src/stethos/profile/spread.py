"""The interval of a ratio from the spread between repetitions: Welch's t of logarithms."""

from __future__ import annotations

import math

import numpy as np

from stethos.profile.resample import Interval
from stethos.store.frame import Array

# Two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def student_t(freedom: float) -> float:
    """The two-sided 95 % point of Student's t for 1 degree of freedom or more."""
    return _STUDENT[max(1, int(freedom)) - 1] if freedom < len(_STUDENT) else 2.0 + 2.3 / freedom


def log_ratio_of_means(first: Array, second: Array) -> Interval:
    """The logarithm of the second geometric mean over the first; two values above 0 or more of each are needed."""
    one, two = np.log(first), np.log(second)
    value = float(two.mean() - one.mean())
    parts = [float(group.var(ddof=1)) / len(group) for group in (one, two)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Interval(value, value, value)
    freedom = sum(parts) ** 2 / sum(part**2 / (len(group) - 1) for part, group in zip(parts, (one, two), strict=True))
    width = error * student_t(freedom)
    return Interval(value, value - width, value + width)
