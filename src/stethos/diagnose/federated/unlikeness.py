"""How unlike the others each client is, in plain numbers of its updates and turns that no rule was made for.

Each number is compared only with the federation's own spread: how many robust standard deviations a client lies from
the median of the others, and how many times as far as the second farthest of them. Nothing is in natural units, so that
nothing has to be set for a kind of data, model or algorithm. Over the rounds a number counts twice: as a mean, and in
the third of a client's rounds in which it is farthest, for what happens at times.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.cohort import Cohort
from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.inside_update import steps_and_passes, unlike_facts
from stethos.diagnose.federated.repeated_samples import distinct_in_batches, fewer_than_said
from stethos.diagnose.federated.standing_out import margins, margins_of_rows

Array = npt.NDArray[np.float64]
AT_TIMES = "_at_times"
MOST = 16.0  # times as far as what stands out; more says nothing new
_ANY = 1e-12  # nothing is too small to count, if all others differ by less
_DEVIATIONS = 3.5
_SOME_MORE = 0.15  # powers of two: what rounding up to whole batches does
_LEAST_REST, _LEAST_BEGIN, _LEAST_SENT = 1e-3, 1e-3, 1e-6  # of what the optimizer did
# Of each number: 1 or -1 where only more or less of it is odd, 0 where both are; and what honest clients differ by.
_UPDATES = {
    "norm_ratio": (0, 0.05), "first_ratio": (0, 0.05), "last_ratio": (0, 0.05), "cos_centre": (-1, 0.02),
    "sign_agreement": (-1, 0.01), "cos_last": (0, 0.03), "cos_self": (-1, 0.03), "cos_back": (1, 0.03),
    "entry_loss": (1, 0.02), "exit_loss": (1, 0.02), "zero_share": (0, 0.01),
}  # fmt: skip
_OF_SIZE = ("norm_ratio", "first_ratio", "last_ratio", "entry_loss", "exit_loss")
_TURNS = {
    # what was sent against what the optimizer did, and where it began
    "rest": (1, 0.1), "cosine": (1, 0.02), "ratio": (1, 0.01), "size": (0, 0.02), "unlike": (1, 0.03),
    "odd": (1, 0.05), "begin": (1, 0.1),
    # how the optimizer steps
    "rate": (0, 0.1), "stretch": (0, 0.02), "downhill": (0, 0.01), "given": (0, 0.02), "turned": (1, 0.02),
    "between": (1, 0.02), "uncleared": (1, 0.05), "trained": (0, 0.01), "outwards": (0, 0.02),
    # how far, how often, on what
    "step": (0, 0.1), "moved": (0, 0.1), "way": (0, 0.1), "gradient": (0, 0.1), "steps": (0, 0.1), "new": (0, 0.1),
    "repeats": (1, 0.02), "relabelled": (1, 0.02), "in_order": (1, 0.1),
    # how well the incoming model answers, and the trained one
    "log_p": (1, 0.05), "residual": (1, 0.05), "level": (0, 0.1), "fall": (0, 0.05), "last": (1, 0.05),
}  # fmt: skip


# With momentum, or scaled by their size, steps follow the gradient by more in some rounds than in others, at everybody.
_BY_GRADIENT = ("stretch", "downhill", "given")


def relative(values: Array, floor: float, errors: Array | float = 0.0) -> Array:
    """How far each client stands out upwards: 1 at 3.5 deviations and twice the second farthest of the others."""
    return np.clip(np.nan_to_num(margins(values, _ANY, _DEVIATIONS, floor, errors)), 0.0, MOST)


def update_unlikeness(cohort: Cohort) -> dict[str, Array]:
    """By number of an update or a report: as a mean over the rounds and, with `AT_TIMES`, in a third of them."""
    matrices = {name: getattr(cohort, name) for name in _UPDATES}
    matrices |= {name: np.log(np.maximum(matrices[name], 1e-9)) for name in _OF_SIZE}
    return _over_rounds(matrices, _UPDATES)


def turn_unlikeness(inside: InsideEvidence) -> dict[str, Array]:
    """The same of what clients' turns show from inside; `fewer`: samples than it says; `other`: loss or optimizer.

    `more`: steps, and passes over its samples, too, where the others agree on the number of either.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        found = _over_rounds({**_sending(inside), **_stepping(inside), **_answering(inside)}, _TURNS)
        found["fewer"] = relative(fewer_than_said(inside, for_its_steps=False), 0.1)
        found["more"] = _more(inside)
    found["other"] = np.max([unlike_facts(inside, name) for name in ("loss", "setup", "graph")], axis=0).astype(float)
    return found


def _more(inside: InsideEvidence) -> Array:
    if not inside.rounds:
        return np.zeros(len(inside.clients))
    steps, passes = steps_and_passes(inside)
    return np.minimum(relative(steps, _SOME_MORE), relative(passes, _SOME_MORE))


def _sending(inside: InsideEvidence) -> dict[str, Array]:
    sent, along = inside.matrix("sent_sent"), inside.matrix("way_sent")
    is_sent, has_turn = np.isfinite(sent), np.isfinite(inside.matrix("steps"))
    rest = np.where(is_sent, np.nan_to_num(inside.matrix("rest")), np.nan)
    return {
        "rest": np.log10(np.maximum(rest, _LEAST_REST)),
        "cosine": -along / np.sqrt(sent),
        "ratio": np.abs(np.log10(np.where(along > 0, along / sent, 1e-3))),
        "size": 0.5 * np.log10(np.maximum(sent, _LEAST_SENT)),
        "unlike": np.where(is_sent, np.nan_to_num(inside.matrix("unlike")), np.nan),
        "odd": np.where(has_turn, _is_odd(inside), np.nan),
        "begin": np.log10(np.maximum(np.nan_to_num(inside.matrix("begin")), _LEAST_BEGIN)),
        "outwards": np.where(is_sent, np.nan_to_num(inside.matrix("outwards")), np.nan),
    }


def _is_odd(inside: InsideEvidence) -> npt.NDArray[np.bool_]:
    """NaN or infinite elements that are sent, though training did not make them."""
    sent, way = np.nan_to_num(inside.matrix("odd_sent")), np.nan_to_num(inside.matrix("odd_way"))
    return np.asarray((sent > 0) & (way == 0))


def _stepping(inside: InsideEvidence) -> dict[str, Array]:
    steps, rate, way = (inside.matrix(name) for name in ("steps", "lr", "way"))
    gradient, rows = inside.matrix("gradient"), np.maximum(inside.matrix("rows"), 1)

    def unless_said(name: str, usual: float, is_known: npt.NDArray[np.bool_]) -> Array:
        said = inside.matrix(name)
        return np.where(is_known, np.where(np.isfinite(said), said, usual), np.nan)

    has_gradient, has_steps = np.isfinite(gradient), steps > 1
    return {
        "rate": np.log(rate), "stretch": np.log(inside.matrix("stretch") / rate),
        "downhill": unless_said("downhill", 1.0, has_gradient),
        "given": np.log(unless_said("given", 1.0, has_gradient)),
        "turned": 1 - unless_said("turned", 1.0, has_steps), "between": unless_said("between", 0.0, has_steps),
        "uncleared": unless_said("uncleared", 0.0, np.isfinite(steps)), "trained": np.log(inside.matrix("trained")),
        "step": np.log(way / steps / rate), "moved": np.log(way / steps), "way": np.log(way),
        "gradient": np.log(gradient), "steps": np.log(steps), "new": np.log(inside.matrix("new") + 1),
        "repeats": -distinct_in_batches(inside), "relabelled": np.nan_to_num(inside.matrix("relabelled") / rows),
        "in_order": np.where(np.isfinite(steps), np.nan_to_num(inside.matrix("in_order")), np.nan),
    }  # fmt: skip


def _answering(inside: InsideEvidence) -> dict[str, Array]:
    log_p, last = inside.matrix("log_p"), inside.matrix("log_p_last")
    size, mean = np.full((2, *log_p.shape), np.nan)
    for column, client in enumerate(inside.clients):
        for row, number in enumerate(inside.rounds):
            told = inside.turns.get(client, {}).get(number, {}).get("residual")
            if isinstance(told, list) and len(told) > 1 and all(isinstance(one, int | float) for one in told):
                size[row, column], mean[row, column] = told[:2]
    return {
        "log_p": -log_p, "residual": np.log(size), "level": mean / np.nanmedian(size, axis=1, keepdims=True),
        "fall": last - log_p, "last": -last,
    }  # fmt: skip


def _over_rounds(matrices: Mapping[str, Array], sides: Mapping[str, tuple[int, float]]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    clients = next(iter(matrices.values())).shape[1]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing are NaN
        values = np.array([matrices[name] for name in sides])
        values = np.where(np.isfinite(values), values, np.nan)
        apart = values - _median_of_known(values)
        ways = [
            (place, way) for place, (side, _) in enumerate(sides.values()) for way in ((side,) if side else (1, -1))
        ]
        turned = np.array([way * apart[place] for place, way in ways])
        floors = np.repeat([[floor for _, floor in sides.values()]], 2, axis=0)
        varies = [place for place, name in enumerate(sides) if name in _BY_GRADIENT]
        own = np.nan_to_num(np.nanmedian(np.nanstd(apart[varies], axis=1), axis=1))
        floors[:, varies] = np.hypot(floors[:, varies], [own / np.sqrt(max(apart.shape[1], 1)), own])
        floors = floors[:, [place for place, _ in ways]].reshape(-1)
        over = np.concatenate([_mean_of_known(turned), _at_times(turned)])
        far = margins_of_rows(over, np.full(len(over), _ANY), _DEVIATIONS, floors)
        far = np.clip(np.nan_to_num(far), 0.0, MOST).reshape(2, len(ways), clients)
        for place, name in enumerate(sides):
            mine = [row for row, (at, _) in enumerate(ways) if at == place]
            found[name], found[name + AT_TIMES] = far[:, mine].max(1)
    return found


def _median_of_known(values: Array) -> Array:
    """Over the last axis, which stays; NaN where nothing is known."""
    ordered, count = np.sort(values, axis=-1), np.isfinite(values).sum(-1, keepdims=True)  # NaN last
    low, high = (np.take_along_axis(ordered, np.maximum(at, 0), -1) for at in ((count - 1) // 2, count // 2))
    return np.asarray(np.where(count % 2, low, (low + high) / 2))


def _mean_of_known(values: Array) -> Array:
    """Over the rounds."""
    is_known = np.isfinite(values)
    return np.asarray(np.where(is_known, values, 0.0).sum(1) / is_known.sum(1))


def _at_times(apart: Array) -> Array:
    """The mean over the third of a client's rounds in which it is largest; NaN with fewer than three rounds."""
    ordered = np.sort(apart, axis=1)  # NaN last
    count = np.isfinite(apart).sum(1, keepdims=True)
    wanted = np.maximum(2, count // 3)
    at = np.arange(apart.shape[1])[:, None]
    is_among = (at >= count - wanted) & (at < count)
    return np.asarray(
        np.where(count >= 3, np.where(is_among, ordered, 0.0).sum(1, keepdims=True) / wanted, np.nan)[:, 0]
    )
