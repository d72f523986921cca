"""What a classifier answers, against the labels that its loss is given: in evaluations, and in inspected batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stethos.observe.batch_print import Array, is_readable, numbers_of, print_of

_MOST_SAMPLES = 1024  # of one call
_MOST_CLASSES = 64
_MOST_NUMBERS = 1 << 18  # of outputs that are looked at
_SHARES = (-0.25, 1.25)  # outputs in there are no logits, or tell nothing yet
_MOST_CALLS = 64  # of one evaluation
_LEAST_LABELS = 30  # that must be alike for two batches to be the same
_LEAST_CHANGES = 0.1  # between neighbouring labels, else they are sorted and alike in any set


class AnswerTally:
    """Counts the answers of one evaluation, by class and label."""

    def __init__(self) -> None:
        self._table = np.zeros((0, 0))
        self._calls = 0
        self._known = 0
        self._labels = 0.0  # a checksum
        self._numbers = np.zeros(4)  # of targets that are numbers: how many, their sum, squares, and squared errors

    @property
    def is_full(self) -> bool:
        return self._calls >= _MOST_CALLS

    def note_numbers(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """One call of a model whose answers are numbers, and what they should be."""
        if self._calls < _MOST_CALLS:
            self._calls += 1
            given = numbers_of(outputs.detach().reshape(-1)[:_MOST_SAMPLES]).astype(np.float64)
            wanted = numbers_of(labels.reshape(-1)[:_MOST_SAMPLES]).astype(np.float64)
            errors = np.square(given - wanted)
            self._numbers += (len(wanted), wanted.sum(), np.square(wanted).sum(), errors.sum())

    def note(self, outputs: Any, labels: Any, is_known: bool, ignored: int | None = None) -> None:
        """One call of a loss function; `is_known`: the very labels of a training batch; `ignored`: what is no label."""
        if self._calls >= _MOST_CALLS:
            return
        pair = answers_of(outputs, labels, ignored)
        if pair is None:
            return
        self._calls += 1
        self._known += is_known
        self._labels += print_of(labels).hash
        answered, wanted = pair
        size = max(len(self._table), int(max(answered.max(), wanted.max())) + 1)
        table = np.zeros((size, size))
        table[: len(self._table), : len(self._table)] = self._table
        np.add.at(table, (answered, wanted), 1.0)
        self._table = table

    def facts(self) -> dict[str, Any]:
        """Shares of right answers, of the commonest answer and label, and of right ones if classes were renamed.

        Of numbers: the squared errors, against those of the mean of the targets.
        """
        total = float(self._table.sum())
        count, sums, squares, errors = self._numbers.tolist()
        if not total:
            spread = squares - sums**2 / count if count else 0.0
            if not spread > 0 or not np.isfinite(errors):
                return {}
            return {"numbers": int(count), "missed": errors / spread, "variance": spread / count}
        return {
            "answers": int(total),
            "classes": int((self._table.sum(0) > 0).sum()),
            "hits": float(np.trace(self._table)) / total,
            "top_answer": float(self._table.sum(1).max()) / total,
            "top_label": float(self._table.sum(0).max()) / total,
            "renamed": _best_naming(self._table) / total,
            "known": self._known == self._calls,
            "labels": self._labels,
        }


def answers_of(outputs: Any, labels: Any, ignored: int | None = None) -> tuple[Array, Array] | None:
    """The classes that a model gives and those that are wanted, but for padding; None where these are no classes."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(labels, torch.Tensor):
        return None
    if not is_readable(outputs) or not is_readable(labels) or not outputs.numel() or not outputs.is_floating_point():
        return None
    outputs, labels = outputs.detach(), labels.detach()
    if labels.is_floating_point():
        if labels.numel() != outputs.numel() or (outputs.dim() > 1 and outputs.shape[1] > 1):
            return None
        given, wanted = _some(outputs), _some(labels)
        are_shares = float(given.min()) >= _SHARES[0] and float(given.max()) <= _SHARES[1]
        answered = (given > (0.5 if are_shares else 0.0)).astype(np.int64)
        if not bool(((wanted == 0) | (wanted == 1)).all()):
            return None
        return answered, wanted.astype(np.int64)
    axis = class_axis(outputs, labels)
    if axis is None or not 1 < outputs.shape[axis] <= _MOST_CLASSES:
        return None
    classes, count = outputs.shape[axis], max(1, _MOST_NUMBERS // (outputs.numel() // len(outputs)))
    answered, wanted = _some(outputs[:count].argmax(axis)), _some(labels[:count])
    meant = (wanted >= 0) & (wanted < classes) & (wanted != (-1 if ignored is None else ignored))
    return (answered[meant], wanted[meant]) if bool(meant.any()) else None


def is_zero_or_one(labels: torch.Tensor) -> bool:
    """Whether labels that are numbers are no or yes."""
    values = _some(labels.detach())
    return bool(((values == 0) | (values == 1)).all())


def class_axis(outputs: torch.Tensor, labels: torch.Tensor) -> int | None:
    """The dimension of outputs that holds the classes, where there is a label for each sample, place or word."""
    if outputs.dim() != labels.dim() + 1 or not labels.dim():
        return None
    if labels.shape == (outputs.shape[0], *outputs.shape[2:]):
        return 1
    return labels.dim() if labels.shape == outputs.shape[:-1] else None


def _some(tensor: torch.Tensor) -> Array:
    """Numbers spread over a tensor, the same places of any tensor of that size."""
    flat = tensor.reshape(-1)
    return numbers_of(flat[:: max(1, flat.numel() // _MOST_SAMPLES)][:_MOST_SAMPLES])


def hits_of(
    function: str, outputs: torch.Tensor | None, labels: torch.Tensor | None, ignored: int | None = None
) -> dict[str, float]:
    """The share of right answers in a batch, where the loss is one of classes."""
    if function not in ("NllLoss", "NllLoss2D", "BinaryCrossEntropyWithLogits", "BinaryCrossEntropy"):
        return {}
    pair = answers_of(outputs, labels, ignored)
    return {"hits": float((pair[0] == pair[1]).mean())} if pair is not None and len(pair[0]) >= 8 else {}


def is_telling(labels: torch.Tensor | None) -> bool:
    """Whether labels are so many, and in such an order, that equal ones are those of the same samples."""
    if labels is None or labels.numel() < _LEAST_LABELS or not is_readable(labels):
        return False
    values = numbers_of(labels.detach().reshape(-1)[:_MOST_SAMPLES])
    return float((values[1:] != values[:-1]).mean()) > _LEAST_CHANGES


def _best_naming(table: Array) -> float:
    """How many answers are right under the best naming of the classes, found greedily, the largest counts first."""
    left, found = table.copy(), 0.0
    for _ in range(len(left)):
        row, column = np.unravel_index(int(left.argmax()), left.shape)
        if left[row, column] <= 0:
            break
        found += float(left[row, column])
        left[row, :] = left[:, column] = -1.0
    return found
