"""What recording costs a step, from a training that was bare and observed in turns, block by block.

Blocks that follow each other are compared with each other, so that a machine that grows slower or faster by and by
does no harm. Steps vary by more than recording costs: plain ones are compared by their interquartile means. What
samples add, which trimming would hide, is counted in full.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from benchmarks.child import run_child, wait_for_drainer
from benchmarks.estimate import Ratio

_RUN_NAME = "measured"
_RESAMPLES = 2000
_TRIMMED = 0.25  # of the values, at either end


@dataclass(frozen=True, slots=True)
class Turn:
    """One block of each kind, as ms per step; `is_sampled` says of observed steps whether a sample fell into them."""

    bare_ms: Sequence[float]
    observed_ms: Sequence[float]
    is_sampled: Sequence[bool]


class _Sums(NamedTuple):
    """A turn: its usual bare step, the logarithm of a plain observed one over it, what samples took per observed step.

    Of ratios themselves the mean is too large: half as long and twice as long are 1.25 on average.
    """

    bare_ms: float
    plain_log: float
    samples_ms: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Ratios to a bare step, of plain observed steps and of all of them; the bare step; how many had a sample."""

    plain: Ratio
    observed: Ratio
    bare_ms: float
    sampled_share: float


def alternated(directory: Path, job: dict[str, Any]) -> dict[str, Any]:
    """What a process found that trained bare and observed in turns (alternate.py); it records in this directory."""
    directory.mkdir()
    found: dict[str, Any] = run_child("alternate", {**job, "directory": str(directory), "name": _RUN_NAME})
    if job["preset"]:
        wait_for_drainer(directory / _RUN_NAME)
    return found


def turns_of(found: dict[str, Any]) -> list[Turn]:
    return [Turn(**turn) for turn in found["turns"]]


def cost_of(turns: Sequence[Turn]) -> Cost:
    """The costs with intervals of 95 %: turns are resampled whole."""
    sums = [_sums(turn) for turn in turns]
    draw = random.Random(21)  # the same figures give the same interval
    drawn = [_ratios(draw.choices(sums, k=len(sums))) for _ in range(_RESAMPLES)]
    low, high = int(0.025 * _RESAMPLES), int(0.975 * _RESAMPLES) - 1
    plain, observed = (
        Ratio(value, column[low], column[high])
        for value, column in zip(_ratios(sums), map(sorted, zip(*drawn, strict=True)), strict=True)
    )
    flags = [sampled for turn in turns for sampled in turn.is_sampled]
    return Cost(plain, observed, trimmed_mean([one.bare_ms for one in sums]), sum(flags) / len(flags))


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the quarter at either end: hardly less exact than a mean, and no slow step spoils it."""
    cut = int(_TRIMMED * len(values))
    return mean(sorted(values)[cut : len(values) - cut])


def _sums(turn: Turn) -> _Sums:
    both = list(zip(turn.observed_ms, turn.is_sampled, strict=True))
    plain = [ms for ms, sampled in both if not sampled] or list(turn.observed_ms)
    usual = mean(plain)  # with the slow ones: those with samples have them, too
    bare_ms = trimmed_mean(turn.bare_ms)
    samples_ms = sum(ms - usual for ms, sampled in both if sampled) / len(both)
    return _Sums(bare_ms, math.log(trimmed_mean(plain) / bare_ms), samples_ms)


def _ratios(turns: Sequence[_Sums]) -> tuple[float, float]:
    plain = math.exp(trimmed_mean([turn.plain_log for turn in turns]))
    samples_ms, bare_ms = (mean([getattr(turn, name) for turn in turns]) for name in ("samples_ms", "bare_ms"))
    return plain, plain + samples_ms / bare_ms
