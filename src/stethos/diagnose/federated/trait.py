"""What sets a client apart: a few dozen numbers without units, comparable between federations.

Each is averaged over the rounds of a cohort. Those that end in `_z` are
deviations from the median client in robust standard deviations, the others
are ratios, cosines or shares. NaN where something was not recorded.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.cohort import Cohort

Array = npt.NDArray[np.float64]
_HONEST_SHARE = 0.7
_FAR = 12.0


@dataclass(frozen=True, eq=False)
class Traits:
    """One row per client, one column per trait; `pair` is the label and answer of the largest excess of confusion."""

    names: tuple[str, ...]
    values: Array
    pair: npt.NDArray[np.int64]

    def column(self, name: str) -> Array:
        return self.values[:, self.names.index(name)]


def traits_of(cohort: Cohort) -> Traits:
    """The traits of each client over the rounds of the cohort."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing are NaN, as they should be
        found = _geometry(cohort) | _losses(cohort)
        answers, pair = _answers(cohort)
        found |= answers | _bias(cohort) | _context(cohort, found)
    return Traits(tuple(found), np.column_stack(list(found.values())), pair)


def _geometry(cohort: Cohort) -> dict[str, Array]:
    ratio = np.log(np.maximum(cohort.norm_ratio, 1e-9))
    tilt = np.log(np.maximum(cohort.first_ratio, 1e-9)) - np.log(np.maximum(cohort.last_ratio, 1e-9))
    zero = cohort.zero_share - _middle(cohort.zero_share)
    return {
        "norm": _mean(ratio),
        "norm_z": _mean(_deviation(ratio, 0.05)),
        "norm_spread": np.nanstd(ratio, axis=0),
        "tilt": _mean(tilt - _middle(tilt)),
        "tilt_z": _mean(_deviation(tilt, 0.05)),
        "cosine": _mean(cohort.cos_centre),
        "cosine_z": _mean(_deviation(cohort.cos_centre, 0.02)),
        "sign": _mean(cohort.sign_agreement),
        "sign_z": _mean(_deviation(cohort.sign_agreement, 0.01)),
        "last": _mean(cohort.cos_last),
        "last_z": _mean(_deviation(cohort.cos_last, 0.02)),
        "self": _mean(cohort.cos_self),
        "self_z": _mean(_deviation(cohort.cos_self, 0.02)),
        "back": _mean(cohort.cos_back),
        "back_z": _mean(_deviation(cohort.cos_back, 0.02)),
        "back_rounds": _mean(cohort.back_rounds) / 5,
        "zero": _mean(zero),
        "inputs": _mean(cohort.input_cos),
        "inputs_z": _mean(_deviation(cohort.input_cos, 0.002)),
        "focus_input": _mean(cohort.input_focus),
        "focus_input_z": _mean(_deviation(cohort.input_focus, 0.001)),
        "tail": _mean(cohort.input_tail - _middle(cohort.input_tail)),
        "tail_z": _mean(_deviation(cohort.input_tail, 0.05)),
    }


def _losses(cohort: Cohort) -> dict[str, Array]:
    entry, exit_ = np.log(np.maximum(cohort.entry_loss, 1e-6)), np.log(np.maximum(cohort.exit_loss, 1e-6))
    middle = _middle(entry)
    fall = middle[:-1].mean() - middle[1:].mean() if len(middle) > 1 else 0.0
    return {
        "entry": _mean(entry - middle),
        "entry_z": _mean(_deviation(entry, 0.03)),
        "gain": _mean(entry - exit_) - np.nanmedian(_mean(entry - exit_)),
        "gain_z": _mean(_deviation(entry - exit_, 0.03)),
        "fall": np.full(entry.shape[1], fall),
    }


def _answers(cohort: Cohort) -> tuple[dict[str, Array], npt.NDArray[np.int64]]:
    """Local labels against the incoming model's answers, compared with what the other clients' rates would give.

    Comparing label by label makes it blind to which labels a client has, and
    so to honest skew.
    """
    clients, classes = len(cohort.clients), cohort.confusion.shape[-1]
    names = ("error", "error_z", "cell", "cell_z", "second", "row", "row_rest", "focus", "spread")
    pair = np.full((clients, 2), -1)
    if not classes or not np.isfinite(cohort.confusion).any():
        return {name: np.full(clients, math.nan) for name in names}, pair
    counts = np.nansum(cohort.confusion, axis=0)
    is_known = counts.sum((1, 2)) > 0
    keep = is_known.copy()
    for _ in range(2):  # rates from those who err least beyond expectation, so that the faulty do not set them
        rates = _other_rates(counts, keep)
        excess = counts - counts.sum(2, keepdims=True) * rates
        wrong = _off_diagonal(excess)
        total = np.maximum(counts.sum((1, 2)), 1)
        error = wrong.sum((1, 2)) / total
        limit = np.quantile(error[is_known], _HONEST_SHARE)
        keep = is_known & (error <= limit)
    rounds = np.maximum(np.isfinite(cohort.confusion[:, :, 0, 0]).sum(0), 1)
    expected = _off_diagonal(counts.sum(2, keepdims=True) * rates)
    positive = np.maximum(wrong, 0)
    flat = positive.reshape(clients, -1)
    best = flat.argmax(1)
    top = flat[np.arange(clients), best]
    second = np.sort(flat, axis=1)[:, -2] if flat.shape[1] > 1 else np.zeros(clients)
    rows = positive.sum(2)
    row = rows.max(1)
    own_top = positive.max(2)[np.arange(clients), rows.argmax(1)]
    scale = np.sqrt(expected.sum((1, 2)) / rounds + 1)
    cell_scale = np.sqrt(expected.reshape(clients, -1)[np.arange(clients), best] / rounds + 1)
    sums = np.maximum(positive.sum((1, 2)), 1e-9)
    found = {
        "error": error,
        "error_z": np.clip(error * total / rounds / scale, -_FAR, _FAR * 4) / 2,
        "cell": top / total,
        "cell_z": np.clip(top / rounds / cell_scale, 0, _FAR * 4) / 2,
        "second": second / total,
        "row": row / total,
        "row_rest": (row - own_top) / total,
        "focus": top / sums,
        "spread": np.exp(_entropy(positive.reshape(clients, -1) / sums[:, None])) / max(classes * (classes - 1), 1),
    }
    for values in found.values():
        values[~is_known] = math.nan
    pair = np.column_stack(np.divmod(best, classes))
    return found, pair


def _bias(cohort: Cohort) -> dict[str, Array]:
    """Whether the output layer's bias moved as the client's own labels ask for: to what the model says too seldom."""
    clients, classes = len(cohort.clients), cohort.bias.shape[-1]
    if classes < 2 or classes != cohort.confusion.shape[-1]:
        return {"bias": np.full(clients, math.nan)}
    asked = cohort.confusion.sum(3) - cohort.confusion.sum(2)
    moved = cohort.bias - cohort.bias.mean(2, keepdims=True)
    asked = asked - asked.mean(2, keepdims=True)
    cosine = (asked * moved).sum(2) / np.sqrt((asked**2).sum(2) * (moved**2).sum(2))
    return {"bias": _mean(cosine)}


def _context(cohort: Cohort, found: dict[str, Array]) -> dict[str, Array]:
    """What is typical of the whole federation, the same for all its clients."""
    clients = len(cohort.clients)

    def all_alike(value: float) -> Array:
        return np.full(clients, value)

    return {
        "clients": all_alike(math.log(clients)),
        "rounds": all_alike(math.log(len(cohort))),
        "typical_cosine": all_alike(float(np.nanmedian(found["cosine"]))),
        "cosine_range": all_alike(_scale(found["cosine"])),
        "typical_self": all_alike(float(np.nanmedian(found["self"]))),
        "entry_range": all_alike(_scale(found["entry"])),
        "size": _mean(np.log(np.maximum(cohort.samples, 1))) - np.nanmedian(np.log(np.maximum(cohort.samples, 1))),
    }


def _mean(values: Array) -> Array:
    mean: Array = np.nanmean(values, axis=0)
    return mean


def _middle(values: Array) -> Array:
    """The median of each row without NaN, as a column; `np.nanmedian` takes thirty times as long for short rows."""
    ordered = np.sort(values, axis=1)
    known = (~np.isnan(values)).sum(1, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(known - 1, 0) // 2, axis=1)
    high = np.take_along_axis(ordered, np.minimum(known // 2, values.shape[1] - 1), axis=1)
    middle: Array = np.where(known > 0, (low + high) / 2, math.nan)
    return middle


def _deviation(values: Array, floor: float) -> Array:
    """From the median client of each round, in robust standard deviations of at least `floor`."""
    middle = _middle(values)
    scale = np.maximum(1.4826 * _middle(np.abs(values - middle)), floor)
    deviation: Array = np.clip((values - middle) / scale, -_FAR, _FAR)
    return deviation


def _scale(values: Array) -> float:
    return float(1.4826 * np.nanmedian(np.abs(values - np.nanmedian(values))))


def _other_rates(counts: Array, keep: npt.NDArray[np.bool_]) -> Array:
    """For each client and label, how the incoming model answers it at the other kept clients; smoothed."""
    classes = counts.shape[-1]
    kept = np.where(keep[:, None, None], counts, 0.0)
    others = kept.sum(0, keepdims=True) - kept
    seen = others.sum(2, keepdims=True)
    # Where the others hardly have a label, the model's answers to it are not known: suppose half of them are right.
    prior = np.full((classes, classes), 0.5 / max(classes - 1, 1))
    np.fill_diagonal(prior, 0.5)
    strength = 2.0
    rates: Array = (others + strength * prior) / (seen + strength)
    return rates


def _off_diagonal(values: Array) -> Array:
    copy: Array = values.copy()
    places: Any = np.arange(values.shape[-1])
    copy[..., places, places] = 0
    return copy


def _entropy(shares: Array) -> Array:
    entropy: Array = -(shares * np.log(np.maximum(shares, 1e-12))).sum(-1)
    return entropy
