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
Mask = npt.NDArray[np.bool_]
NAMES = (
    "norm", "norm_z", "norm_spread", "tilt", "tilt_z", "cosine", "cosine_z", "sign", "sign_z", "last", "last_z", "self",
    "self_z", "back", "back_z", "back_rounds", "zero", "inputs", "inputs_z", "focus_input", "focus_input_z", "tail",
    "tail_z", "entry", "entry_z", "gain", "gain_z", "fall", "error", "error_z", "cell", "cell_z", "second", "row",
    "row_rest", "focus", "spread", "bias", "clients", "rounds", "typical_cosine", "cosine_range", "typical_self",
    "entry_range", "size",
)  # fmt: skip
_HONEST_SHARE = 0.7
_FAR = 12.0
_USUAL = 6.0  # times what two in three clients differ by at most


@dataclass(frozen=True, eq=False)
class Traits:
    """One row per client, one column per trait; `pair` is the label and answer of the largest excess of confusion."""

    names: tuple[str, ...]
    values: Array
    pair: npt.NDArray[np.int64]

    def column(self, name: str) -> Array:
        return self.values[:, self.names.index(name)]


class Signals:
    """What the traits are means of, round by round: computed once for a cohort, asked for many stretches of it.

    `is_kept` are the clients that say what is typical; all unless given. Leaving out those that are known to be faulty
    shows the others against honest ones alone.
    """

    def __init__(self, cohort: Cohort, is_kept: Mask | None = None) -> None:
        self._cohort = cohort
        self._kept = np.ones(len(cohort.clients), bool) if is_kept is None else is_kept
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)
            self._ratio = np.log(np.maximum(cohort.norm_ratio, 1e-9))
            named = self._geometry() | self._losses() | {"bias": _bias(cohort)}
        self._names = tuple(named)
        self._values = np.stack(list(named.values()))
        self._is_known = ~np.isnan(self._values)
        self._values[~self._is_known] = 0.0
        self._sizes = np.log(np.maximum(cohort.samples, 1))

    def over(self, start: int, stop: int) -> Traits:
        """The traits of each client over a stretch of rounds."""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing are NaN, as they should be
            means = self._values[:, start:stop].sum(1) / self._is_known[:, start:stop].sum(1)
            found = dict(zip(self._names, means, strict=True))
            found["norm_spread"] = np.nanstd(self._ratio[start:stop], axis=0)
            found["gain"] = found["gain"] - np.nanmedian(found["gain"][self._kept])
            middle = self._entry_middle[start:stop]
            found["fall"] = np.full(len(self._kept), middle[:-1].mean() - middle[1:].mean() if len(middle) > 1 else 0.0)
            answers, pair = _answers(self._cohort.confusion[start:stop], self._kept)
            found |= answers | self._context(start, stop, found)
        return Traits(NAMES, np.column_stack([found[name] for name in NAMES]), pair)

    def _geometry(self) -> dict[str, Array]:
        cohort = self._cohort
        tilt = np.log(np.maximum(cohort.first_ratio, 1e-9)) - np.log(np.maximum(cohort.last_ratio, 1e-9))
        return {
            "norm": self._ratio,
            "norm_z": self._deviation(self._ratio, 0.05),
            "tilt": tilt - self._middle(tilt),
            "tilt_z": self._deviation(tilt, 0.05),
            "cosine": cohort.cos_centre,
            "cosine_z": self._deviation(cohort.cos_centre, 0.02),
            "sign": cohort.sign_agreement,
            "sign_z": self._deviation(cohort.sign_agreement, 0.01),
            "last": cohort.cos_last,
            "last_z": self._deviation(cohort.cos_last, 0.02),
            "self": cohort.cos_self,
            "self_z": self._deviation(cohort.cos_self, 0.02),
            "back": cohort.cos_back,
            "back_z": self._deviation(cohort.cos_back, 0.02),
            "back_rounds": cohort.back_rounds / 5,
            "zero": self._beyond(cohort.zero_share),
            "inputs": cohort.input_cos,
            "inputs_z": self._deviation(cohort.input_cos, 0.002),
            "focus_input": cohort.input_focus,
            "focus_input_z": self._deviation(cohort.input_focus, 0.001),
            "tail": cohort.input_tail - self._middle(cohort.input_tail),
            "tail_z": self._deviation(cohort.input_tail, 0.05),
        }

    def _losses(self) -> dict[str, Array]:
        cohort = self._cohort
        entry, exit_ = np.log(np.maximum(cohort.entry_loss, 1e-6)), np.log(np.maximum(cohort.exit_loss, 1e-6))
        self._entry_middle = self._middle(entry)
        return {
            "entry": entry - self._entry_middle,
            "entry_z": self._deviation(entry, 0.03),
            "gain": entry - exit_,
            "gain_z": self._deviation(entry - exit_, 0.03),
        }

    def _context(self, start: int, stop: int, found: dict[str, Array]) -> dict[str, Array]:
        """What is typical of the whole federation, the same for all its clients."""
        clients = len(self._kept)

        def all_alike(value: float) -> Array:
            return np.full(clients, value)

        sizes = self._sizes[start:stop]
        return {
            "clients": all_alike(math.log(clients)),
            "rounds": all_alike(math.log(stop - start)),
            "typical_cosine": all_alike(float(np.nanmedian(found["cosine"][self._kept]))),
            "cosine_range": all_alike(_scale(found["cosine"][self._kept])),
            "typical_self": all_alike(float(np.nanmedian(found["self"][self._kept]))),
            "entry_range": all_alike(_scale(found["entry"][self._kept])),
            "size": np.nanmean(sizes, axis=0) - np.nanmedian(sizes[:, self._kept]),
        }

    def _middle(self, values: Array) -> Array:
        """The median of the kept clients of each round without NaN, as a column.

        `np.nanmedian` takes thirty times as long for short rows.
        """
        kept = values[:, self._kept]
        ordered = np.sort(kept, axis=1)
        known = (~np.isnan(kept)).sum(1, keepdims=True)
        low = np.take_along_axis(ordered, np.maximum(known - 1, 0) // 2, axis=1)
        high = np.take_along_axis(ordered, np.minimum(known // 2, kept.shape[1] - 1), axis=1)
        middle: Array = np.where(known > 0, (low + high) / 2, math.nan)
        return middle

    def _beyond(self, values: Array) -> Array:
        """How far from the median client of each round, beyond what clients differ by anyway.

        Weights of inputs that are 0 in all of a client's samples, as the corners of images, do not change, nor those of
        units that none of its samples reach: which they are differs between honest clients. Two in three clients are
        taken for honest, and to differ in few steps, so that most of them may not differ at all.
        """
        apart = values - self._middle(values)
        ordered = np.sort(np.abs(apart[:, self._kept]), axis=1)
        known = (~np.isnan(ordered)).sum(1, keepdims=True)
        usual = np.take_along_axis(ordered, np.maximum(known - 1, 0) * 2 // 3, axis=1)
        beyond: Array = np.sign(apart) * np.maximum(np.abs(apart) - _USUAL * usual, 0.0)
        return beyond

    def _deviation(self, values: Array, floor: float) -> Array:
        """From the median client of each round, in robust standard deviations of at least `floor`."""
        apart = values - self._middle(values)
        deviation: Array = np.clip(apart / np.maximum(1.4826 * self._middle(np.abs(apart)), floor), -_FAR, _FAR)
        return deviation


def _answers(confusion: Array, is_kept: Mask) -> tuple[dict[str, Array], npt.NDArray[np.int64]]:
    """Local labels against the incoming model's answers, compared with what the other clients' rates would give.

    Comparing label by label makes it blind to which labels a client has, and
    so to honest skew.
    """
    clients, classes = confusion.shape[1], confusion.shape[-1]
    names = ("error", "error_z", "cell", "cell_z", "second", "row", "row_rest", "focus", "spread")
    pair = np.full((clients, 2), -1)
    if not classes or not np.isfinite(confusion).any():
        return {name: np.full(clients, math.nan) for name in names}, pair
    counts = np.nansum(confusion, axis=0)
    is_known = counts.sum((1, 2)) > 0
    is_typical = is_known & is_kept if (is_known & is_kept).any() else is_known
    keep = is_typical
    for _ in range(2):  # rates from those who err least beyond expectation, so that the faulty do not set them
        rates = _other_rates(counts, keep)
        excess = counts - counts.sum(2, keepdims=True) * rates
        wrong = _off_diagonal(excess)
        total = np.maximum(counts.sum((1, 2)), 1)
        error = wrong.sum((1, 2)) / total
        limit = np.quantile(error[is_typical], _HONEST_SHARE)
        keep = is_typical & (error <= limit)
    rounds = np.maximum(np.isfinite(confusion[:, :, 0, 0]).sum(0), 1)
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


def _bias(cohort: Cohort) -> Array:
    """Whether the output layer's bias moved as the client's own labels ask for: to what the model says too seldom."""
    classes = cohort.bias.shape[-1]
    if classes < 2 or classes != cohort.confusion.shape[-1]:
        return np.full(cohort.norm.shape, math.nan)
    asked = cohort.confusion.sum(3) - cohort.confusion.sum(2)
    moved = cohort.bias - cohort.bias.mean(2, keepdims=True)
    asked = asked - asked.mean(2, keepdims=True)
    cosine: Array = (asked * moved).sum(2) / np.sqrt((asked**2).sum(2) * (moved**2).sum(2))
    return cosine


def _scale(values: Array) -> float:
    return float(1.4826 * np.nanmedian(np.abs(values - np.nanmedian(values))))


def _other_rates(counts: Array, keep: Mask) -> Array:
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
