"""Differences between histories, with intervals: paired on the samples of the test, over rounds or seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.profile.spread import student_t

Flags = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
_Z = 1.96


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """An estimate and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def share_of(flags: Sequence[Flags]) -> ConfidenceInterval:
    """An accuracy, and so its interval lies between 0 and 1: of several models on the same samples."""
    found = difference([one.astype(float) for one in flags])
    return ConfidenceInterval(found.mean, max(found.low, 0.0), min(found.high, 1.0))


def difference(values: Sequence[Array]) -> ConfidenceInterval:
    """The mean of numbers per sample, one vector for each repetition.

    Two sources of chance are added: which samples the test happens to have (the
    vectors' mean over repetitions, one number per sample), and what differs between
    repetitions (their means; few of them, so by Student's t).
    """
    table = np.stack(values)
    repetitions, samples = table.shape
    mean = float(table.mean())
    variance = (_Z**2) * float(table.mean(0).var(ddof=1)) / samples if samples > 1 else math.inf
    if repetitions > 1:
        point = student_t(repetitions - 1)
        variance += point**2 * float(table.mean(1).var(ddof=1)) / repetitions
    half = math.sqrt(variance)
    return ConfidenceInterval(mean, mean - half, mean + half)


def beyond(values: Sequence[float]) -> float:
    """What one more of the same kind would exceed in one of forty cases; infinite for fewer than two."""
    if len(values) < 2:
        return math.inf
    point = student_t(len(values) - 1)
    return float(np.mean(values)) + point * float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / len(values))


def gains(before: Sequence[Flags], after: Sequence[Flags]) -> list[Array]:
    """Per repetition and sample: 1 where the answer became right, -1 where it became wrong."""
    return [new.astype(float) - old.astype(float) for old, new in zip(before, after, strict=True)]


def noise_of(flags: Sequence[Flags]) -> float:
    """Two standard errors of an accuracy: a smaller effect is none that the test can show."""
    accuracy = float(np.mean([one.mean() for one in flags]))
    return 2 * math.sqrt(max(accuracy * (1 - accuracy), 0.25 / len(flags[0])) / len(flags[0]))
