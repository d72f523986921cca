"""The loss of the best constant answer, from the labels of inspected batches: what a model has to get below."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stethos.observe.batch_print import Array, class_counts, is_readable, numbers_of

_MOST_COLUMNS = 256
_MOST_ROWS = 1024
_LEAST_LABELS = 32
_CLASSES = ("NllLoss", "NllLoss2D", "NllLossNd")
_BINARY = ("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits")


class Prior:
    """Labels so far, as counts or moments; those of another kind or shape begin it anew."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] = ()
        self._count = 0
        self._sums = self._squares = np.zeros(0)

    def add(self, function: str, labels: torch.Tensor | None, ignored: int | None) -> dict[str, float]:
        """Note the labels of a batch: `prior` is the mean loss of the best constant, where that is known."""
        if labels is None or not is_readable(labels) or labels.is_complex() or not labels.numel() or not labels.dim():
            return {}
        if function in _CLASSES:
            self._add_classes(labels, ignored)
        elif function in _BINARY or function == "MseLoss":
            self._add_numbers(function, labels)
        else:
            return {}
        if self._count < _LEAST_LABELS or not np.isfinite(self._squares).all():
            return {}
        shares = self._sums / self._count
        if function == "MseLoss":
            return {"prior": float(np.mean(self._squares / self._count - shares**2))}
        parts = shares if function in _CLASSES else np.stack([shares, 1 - shares])
        with np.errstate(all="ignore"):
            entropies = -np.where(parts > 0, parts * np.log(parts), 0.0)
        return {"prior": float(entropies.sum(0) if function in _CLASSES else entropies.sum(0).mean())}

    def _add_classes(self, labels: torch.Tensor, ignored: int | None) -> None:
        counts = class_counts(labels)
        if counts is None or labels.is_floating_point():
            return
        if ignored is not None and 0 <= ignored < len(counts):
            counts[ignored] = 0
        sums = np.zeros(max(len(counts), len(self._sums)))
        if self._key == ("classes",):
            sums[: len(self._sums)] = self._sums
        else:
            self._key, self._count = ("classes",), 0
        sums[: len(counts)] += counts
        self._sums, self._squares, self._count = sums, sums, self._count + sum(counts)

    def _add_numbers(self, function: str, labels: torch.Tensor) -> None:
        table: Array = numbers_of(labels.detach()[:_MOST_ROWS]).astype(np.float64)
        table = table.reshape(len(table), -1)
        table = table[:, :: max(1, table.shape[1] // _MOST_COLUMNS)][:, :_MOST_COLUMNS]
        key = (function, table.shape[1])
        if self._key != key:
            self._key, self._count = key, 0
            self._sums, self._squares = np.zeros(table.shape[1]), np.zeros(table.shape[1])
        self._sums, self._squares = self._sums + table.sum(0), self._squares + np.square(table).sum(0)
        self._count += len(table)
