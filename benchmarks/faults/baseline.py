"""Ways of finding faulty clients from the literature, written from their papers; each is told how many there are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.case import Played

Accused = set[str]
_INPUTS = 10
_ACTIVE = 0.003  # FedDebug's threshold of an active neuron


def _largest(scores: NDArray[np.float64], played: Played, count: int) -> Accused:
    scores = np.where(np.isfinite(scores), scores, np.inf)
    return {played.cohort.clients[place] for place in np.argsort(-scores)[:count]}


def _changes(played: Played, number: int = -1) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):
        change = played.sent[number].astype(np.float64) - played.bases[number]
    return np.nan_to_num(change, nan=1e6, posinf=1e6, neginf=-1e6)


def neuron_activation(played: Played, count: int) -> Accused:
    """FedDebug: on random inputs, without the faulty client the most neurons are active in all the others."""
    entries = [entry for entry in played.layout.entries if len(entry.shape) == 2]
    hidden, width = entries[0].shape
    bias = next(entry for entry in played.layout.entries if entry.start == entries[0].end)
    chance = np.random.default_rng(played.case.seed)
    inputs = chance.normal(size=(_INPUTS, width)) * np.sqrt(2 / width) * np.sqrt(width)
    sent = np.nan_to_num(played.sent[-1])
    weights = sent[:, entries[0].start : entries[0].end].reshape(len(sent), hidden, width)
    active = np.einsum("khw,iw->kih", weights, inputs) + sent[:, None, bias.start : bias.end] > _ACTIVE
    left, accused = list(range(len(sent))), []
    for _ in range(count):
        agreed = [active[[one for one in left if one != out]].all(0).sum() for out in left]
        accused.append(left.pop(int(np.argmax(agreed))))
    return {played.cohort.clients[place] for place in accused}


def multi_krum(played: Played, count: int) -> Accused:
    """The updates whose nearest others are farthest."""
    changes = _changes(played)
    squares = (changes**2).sum(1)
    distance = np.maximum(squares[:, None] + squares - 2 * changes @ changes.T, 0)
    near = max(len(changes) - count - 2, 1)
    return _largest(np.sort(distance, axis=1)[:, 1 : near + 1].sum(1), played, count)


def distance_to_median(played: Played, count: int) -> Accused:
    """The updates farthest from the coordinate-wise median."""
    changes = _changes(played)
    return _largest(np.linalg.norm(changes - np.median(changes, axis=0), axis=1), played, count)


def prediction_error(played: Played, count: int) -> Accused:
    """FLDetector's idea: updates that differ most from what the client's history predicts, over a window."""
    scores = np.zeros(len(played.cohort.clients))
    for number in range(max(1, len(played.sent) - 8), len(played.sent)):
        if played.sent[number].shape == played.sent[number - 1].shape and len(played.sent[number]) == len(scores):
            error = np.linalg.norm(_changes(played, number) - _changes(played, number - 1), axis=1)
            scores += error / max(error.sum(), 1e-12)
    return _largest(scores, played, count)


BASELINES: dict[str, Callable[[Played, int], Accused]] = {
    "FedDebug-style": neuron_activation,
    "multi-Krum": multi_krum,
    "distance to median": distance_to_median,
    "FLDetector-style": prediction_error,
}
