"""What a client finds out about its own turn, to be added up with others': a few bounded numbers, never a sample.

A client that knows what it trained on, what its optimizer did and what it sends can say more about itself than a server
can read out of a sum of updates. Each number is of about the same size for honest clients, whatever their labels. Those
about few samples are drawn towards the federation's usual ones, which everybody knows from the round before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
TRAITS = (
    "log_norm",  # log of its update's length
    "log_entry_loss",  # log of the incoming model's loss on its data
    "cos_last",  # cosine of its update to the last change of the global model
    "log_sent",  # log of the length of what it sends, per length of what it trained
    "cos_sent",  # cosine of what it sends to what it trained
    "disputed",  # largest share of a class that the incoming model answers with one other class
    "log_spread",  # log of the spread of its middle input within the classes
    "level",  # mean of its inputs
    "right",  # share of its samples that the incoming model answers as labelled
    "zero_share",  # share of the weights that its update leaves alone
)
OF_DATA = ("log_entry_loss", "disputed", "log_spread", "level", "right", "zero_share")
_FEWEST_OF_A_CLASS = 4
_FEW = 16  # samples that count as much as what is usual
_LARGEST = 20.0
_LEAST_SPREAD = 0.05


@dataclass(frozen=True, eq=False)
class OwnTurn:
    """One turn as its client sees it; what is None is not known. `labels` and `answers` are of the incoming model."""

    sent: Vector
    trained: Vector | None = None
    last: Vector | None = None  # change of the global model in the round before
    entry_loss: float | None = None
    labels: npt.NDArray[np.int64] | None = None
    answers: npt.NDArray[np.int64] | None = None
    inputs: npt.NDArray[Any] | None = None


def own_traits(turn: OwnTurn, usual: Vector | None = None) -> Vector:
    """The numbers of `TRAITS`, each within bounds; 0 where it is not known.

    `usual` are the federation's means of the round before, which sums over all groups give.
    """
    known = {
        "log_norm": _log(_norm(turn.sent)),
        "log_entry_loss": _log(turn.entry_loss),
        "cos_last": _cosine(turn.sent, turn.last),
        "log_sent": 0.0, "cos_sent": 1.0,
        **_of_labels(turn), **_of_inputs(turn.inputs, turn.labels),
        "zero_share": float((turn.sent == 0).mean()) if len(turn.sent) else 0.0,
    }  # fmt: skip
    if turn.trained is not None and _norm(turn.trained) > 0:
        known["log_sent"] = _log(_norm(turn.sent) / _norm(turn.trained))
        known["cos_sent"] = _cosine(turn.sent, turn.trained)
    values = np.array([known.get(name, 0.0) for name in TRAITS])
    if usual is not None and turn.labels is not None:
        counts = {"log_spread": _freedom(turn.labels)}
        for name in OF_DATA:
            place, count = TRAITS.index(name), counts.get(name, len(turn.labels))
            values[place] = usual[place] + (values[place] - usual[place]) * count / (count + _FEW)
    return np.clip(np.where(np.isfinite(values), values, 0.0), -_LARGEST, _LARGEST)


def _of_labels(turn: OwnTurn) -> dict[str, float]:
    labels, answers = turn.labels, turn.answers
    if labels is None or answers is None or not len(labels):
        return {}
    classes = int(max(labels.max(), answers.max())) + 1
    table = np.zeros((classes, classes))
    np.add.at(table, (labels, answers), 1)
    rows = table.sum(1, keepdims=True)
    wrong = np.where(rows >= _FEWEST_OF_A_CLASS, table / np.maximum(rows, 1), 0.0)
    np.fill_diagonal(wrong, 0.0)
    return {"disputed": float(wrong.max()), "right": float(np.trace(table) / table.sum())}


def _of_inputs(inputs: npt.NDArray[Any] | None, labels: npt.NDArray[np.int64] | None) -> dict[str, float]:
    if inputs is None or len(inputs) < 2:
        return {}
    flat = np.asarray(inputs, np.float64).reshape(len(inputs), -1)
    _, own = np.unique(np.zeros(len(flat)) if labels is None else labels, return_inverse=True)
    counts = np.bincount(own)
    means = np.zeros((len(counts), flat.shape[1]))
    np.add.at(means, own, flat)
    rest = flat - (means / counts[:, None])[own]
    spread = np.sqrt((rest**2).sum(0) / max(len(flat) - len(counts), 1))
    return {"log_spread": _log(max(float(np.median(spread)), _LEAST_SPREAD)), "level": float(flat.mean())}


def _freedom(labels: npt.NDArray[np.int64]) -> int:
    """Samples beyond the first of each class: one alone has no spread."""
    return len(labels) - len(np.unique(labels))


def _norm(vector: Vector) -> float:
    return float(np.linalg.norm(vector))


def _cosine(one: Vector, other: Vector | None) -> float:
    length = _norm(one) * _norm(other) if other is not None else 0.0
    return float(one @ other) / length if other is not None and length > 0 else 0.0


def _log(value: float | None) -> float:
    return math.log(min(max(value, 1e-6), 1e6)) if value is not None and value == value else 0.0
