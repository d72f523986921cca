"""How unlike the others' a client's samples and labels are, against what those differ by among themselves."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.data_sketch import Sketch, joined
from stethos.diagnose.federated.inside_data import residuals_of
from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.inside_label import by_answers, by_data
from stethos.diagnose.federated.standing_out import deviations
from stethos.diagnose.federated.unlikeness import relative

Array = npt.NDArray[np.float64]
_FEWEST_SAMPLES, _FEWEST_LABELLED = 8, 15
_FEWEST_FREE = 10  # samples beyond one of each class
_DATA = {"shape": 0.15, "place": 0.3, "words": 0.02, "mix": 0.05, "relation": 0.1, "scale": 0.1}
_FLOOR = 0.01  # of all labels: what honest clients differ by
_INFORMED = 1e-3  # of the variance within classes, between them
_LEAST, _MOST = -2.0, 8.0  # deviations that one witness counts


def data_unlikeness(clients: Sequence[Sketch | None]) -> dict[str, Array]:
    """By how a client's samples differ: within and between classes, words, mix of labels, targets, single columns.

    `worse`, `unexplained` and `tilt` say how a feature follows from the others.
    """
    raw = {name: np.full(len(clients), np.nan) for name in _DATA}
    for place, mine, others in _compared(clients, _FEWEST_SAMPLES):
        for name, value in _differences(mine, others).items():
            raw[name][place] = value
    worse, unexplained, tilt, errors = residuals_of(clients, clients)
    return {
        **{name: relative(raw[name], floor) for name, floor in _DATA.items()},
        "worse": relative(worse, 0.02, errors), "unexplained": relative(unexplained, 0.02, errors),
        "tilt": relative(tilt, 0.03, errors),
    }  # fmt: skip


def label_unlikeness(inside: InsideEvidence, whole: Sequence[Sketch | None]) -> dict[str, Array]:
    """How far wrong labels stand out, by witness, and by the `mean` of all witnesses.

    The others' samples of each class; the global model's answers; samples that spread as those of other classes do;
    neighbours with other labels.
    """
    data, answers = by_data(whole, whole), by_answers(inside, inside.rounds[1:])
    mixed, mixed_error = mixed_within_classes(whole)
    count = np.array([one.n if one is not None else 0.0 for one in whole])
    near_error = 0.7 / np.sqrt(np.maximum(count, 1.0))
    told = {
        "share_by_data": (data.share, _FLOOR, data.error), "cell_by_data": (data.cell, _FLOOR, data.cell_error),
        "share_by_answers": (answers.share, _FLOOR, answers.error),
        "cell_by_answers": (answers.cell, _FLOOR, answers.cell_error),
        "mixed": (mixed, 0.02, mixed_error), "neighbours": (-_neighbours(whole), 0.05, near_error),
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where no witness speaks
        mean = np.nanmean([np.clip(deviations(*one), _LEAST, _MOST) for one in told.values()], axis=0)
    return {**{name: relative(*one) for name, one in told.items()}, "mean": relative(mean, 0.4)}


def mixed_within_classes(clients: Sequence[Sketch | None]) -> tuple[Array, Array]:
    """How much more a client's classes spread towards each other than in other directions, and its standard error.

    About the share of wrong labels: where they are random it is 1. Inputs that vary more spread in all directions.
    """
    share, error = np.full((2, len(clients)), np.nan)
    for place, mine, others in _compared(clients, _FEWEST_LABELLED):
        whole, inputs, free = joined(others), mine.inputs, mine.n - len(mine.counts)
        if mine.classes is None or len(whole.counts) < 2 or free < _FEWEST_FREE:
            continue
        root = np.linalg.inv(np.linalg.cholesky(whole.covariance[:inputs, :inputs]))
        middle = np.average(whole.means[:, :inputs], axis=0, weights=whole.counts)
        between = (whole.means[:, :inputs] - middle) * np.sqrt(whole.counts / whole.n)[:, None] @ root.T
        sizes, ways = np.linalg.svd(between, full_matrices=False)[1:]
        count = min(len(whole.counts) - 1, inputs)
        expected, ways = np.maximum(sizes[:count] ** 2 - 1 / whole.n, 0.0), ways[:count]
        if expected.sum() <= _INFORMED:
            continue
        own = root @ (mine.scatter[:inputs, :inputs] / free) @ root.T
        along = ((ways @ own) * ways).sum(1)
        rest = (np.trace(own) - along.sum()) / (inputs - count) if inputs > count else 1.0
        scale = float((expected**2).sum())
        share[place] = float(((along - rest) * expected).sum()) / scale
        error[place] = float(np.sqrt(2 / free * (expected**2 * np.maximum(along, 0.5) ** 2).sum())) / scale
    return share, error


def _compared(clients: Sequence[Sketch | None], fewest: int) -> Iterator[tuple[int, Sketch, list[Sketch]]]:
    """Clients with so many samples, each with those that it can be compared with."""
    for place, mine in enumerate(clients):
        if mine is not None and mine.n >= fewest:
            others = [one for at, one in enumerate(clients) if at != place and one is not None and one.can_join(mine)]
            if len(others) >= 3:
                yield place, mine, others


def _neighbours(clients: Sequence[Sketch | None]) -> Array:
    """How much more often neighbours have the same label than by chance; 1 is always."""
    return np.array([
        (one.near[0] - one.near[1]) / max(1 - one.near[1], 0.05)
        if one is not None and one.near is not None and one.n >= _FEWEST_LABELLED else np.nan
        for one in clients
    ])  # fmt: skip


def _differences(mine: Sketch, others: Sequence[Sketch]) -> dict[str, float]:
    whole, inputs = joined(others), mine.features - mine.targets
    reference = whole.covariance
    found = {}
    precision = np.linalg.inv(reference[:inputs, :inputs])
    change = precision @ mine.covariance[:inputs, :inputs]
    found["shape"] = float(np.log(max(0.5 * (np.trace(change) - inputs - np.linalg.slogdet(change)[1]) / inputs, 1e-4)))
    labels = (0,) if mine.classes is None or whole.classes is None else whole.classes
    distance = total = 0.0
    for label, count, mean in zip(mine.classes or (0,), mine.counts, mine.means, strict=True):
        if label in labels:
            apart = (mean - whole.means[labels.index(label)])[:inputs]
            distance, total = distance + count * float(apart @ precision @ apart) / inputs, total + count
    if total:
        found["place"] = float(np.log(max(distance / total, 1e-4)))
    if mine.classes is not None:
        theirs = dict(zip(labels, whole.counts / whole.n, strict=True))
        own = dict(zip(mine.classes, mine.counts / mine.n, strict=True))
        found["mix"] = 0.5 * sum(abs(own.get(one, 0.0) - theirs.get(one, 0.0)) for one in own.keys() | theirs.keys())
    if mine.targets:
        found["relation"] = _relation(mine, reference, inputs)
    if mine.tokens:
        found["words"] = _word_distance(mine.tokens, [one.tokens for one in others if one.tokens])
    if (scale := _scale_distance(mine, others)) is not None:
        found["scale"] = scale
    return found


def _relation(mine: Sketch, reference: Array, inputs: int) -> float:
    """How much more of the targets the others' linear relation leaves over, as a logarithm."""
    slope = np.linalg.solve(reference[:inputs, :inputs], reference[:inputs, inputs:])
    moment = mine.scatter / mine.n
    own = moment[inputs:, inputs:] - 2 * slope.T @ moment[:inputs, inputs:] + slope.T @ moment[:inputs, :inputs] @ slope
    usual = reference[inputs:, inputs:] - slope.T @ reference[:inputs, inputs:]
    return float(np.log(max(np.trace(own), 1e-12) / max(np.trace(usual), 1e-12)))


def _word_distance(mine: Mapping[int, float], others: Sequence[Mapping[int, float]]) -> float:
    """The Jensen-Shannon divergence between a client's words and the others'."""
    words = sorted({word for tokens in (mine, *others) for word in tokens})
    own = np.array([mine.get(word, 0.0) for word in words])
    theirs = np.array([sum(tokens.get(word, 0.0) for tokens in others) for word in words])
    own, theirs = own / max(own.sum(), 1e-9), theirs / max(theirs.sum(), 1e-9)
    middle = np.maximum((own + theirs) / 2, 1e-12)
    return float(sum(0.5 * (one * np.log(np.where(one > 0, one / middle, 1.0))).sum() for one in (own, theirs)))


def _scale_distance(mine: Sketch, others: Sequence[Sketch]) -> float | None:
    """How far the columns' middles and deviations lie from the others', on average; None where they are not known."""
    if mine.deviation is None or mine.middle is None:
        return None
    known = [one for one in others if one.deviation is not None and one.deviation.shape == mine.deviation.shape]
    if len(known) < 3:
        return None
    usual = np.median([one.deviation for one in known if one.deviation is not None], axis=0)
    middle = np.median([one.middle for one in known if one.middle is not None], axis=0)
    scale = np.maximum(usual, 0.05 * float(np.median(usual)) + 1e-9)
    wider = np.minimum(np.abs(np.log(np.maximum(mine.deviation, scale / 20) / scale)), 3.0)
    return float(np.mean(wider + np.minimum(np.abs(mine.middle - middle) / scale, 5.0)))
