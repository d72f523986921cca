"""Whether the labels of a batch have anything to do with its inputs, feature by feature."""

from __future__ import annotations

import numpy as np
import torch

from stethos.observe.batch_print import Array, class_counts, is_readable, numbers_of

_MOST_ROWS, _MOST_COLUMNS, _MOST_TARGETS = 512, 128, 8
_LEAST_ROWS = 8
_LONG = 8  # a row of more numbers of words is a text; fewer are users, items or places, of which one alone tells little


def tie_facts(inputs: torch.Tensor | None, labels: torch.Tensor | None) -> dict[str, float]:
    """The share of a feature's variance that the labels explain, on average, and the share that chance explains.

    Both are exact whatever the distributions: labels that are dealt out at random explain (classes - 1) of (rows - 1)
    parts, and one number for each row explains one.
    """
    if inputs is None or labels is None or not is_readable(inputs) or not is_readable(labels):
        return {}
    if not inputs.numel() or not labels.numel() or inputs.is_complex() or labels.is_complex():
        return {}
    is_words = not inputs.is_floating_point()
    if is_words and inputs.dim() == 2 and inputs.numel() == labels.numel() > inputs.shape[0]:  # a word for each word
        inputs, labels = inputs.reshape(-1)[:_MOST_ROWS], labels.reshape(-1)[:_MOST_ROWS]
    elif is_words and (inputs.dim() != 2 or inputs.shape[1] <= _LONG):
        return {}
    rows = min(inputs.shape[0] if inputs.dim() else 0, _MOST_ROWS)
    if rows < _LEAST_ROWS or not labels.dim() or labels.shape[0] != inputs.shape[0]:
        return {}
    labels = labels.detach()[:rows]
    counts = class_counts(labels) if labels.numel() == rows else None
    table = _features(inputs.detach()[:rows])
    table = table - table.mean(0)
    total = np.square(table).sum(0)
    if not np.isfinite(total).all() or not (total > 0).any():
        return {}
    table, total = table[:, total > 0], total[total > 0]
    if counts is not None:
        present = sum(count > 0 for count in counts)
        if not 1 < present <= rows // 2 or sum(counts) != rows:
            return {}
        between = _between(table, numbers_of(labels.reshape(-1)).astype(np.int64))
        return {"tie": float(np.mean(between / total)), "tie_by_chance": (present - 1) / (rows - 1)}
    wanted = numbers_of(labels.reshape(rows, -1)[:, :_MOST_TARGETS]).astype(np.float64)
    wanted = wanted - wanted.mean(0)
    size = np.square(wanted).sum(0)
    if not np.isfinite(size).all() or not (size > 0).all():
        return {}
    likeness = np.square(np.einsum("rc,rt->ct", table, wanted)) / np.outer(total, size)
    return {"tie": float(likeness.mean()), "tie_by_chance": 1 / (rows - 1)}


def _features(inputs: torch.Tensor) -> Array:
    """A table of numbers: some of those of each row, or which words it holds."""
    rows = inputs.shape[0]
    flat = inputs.reshape(rows, -1)
    if inputs.is_floating_point():
        stride = max(1, flat.shape[1] // _MOST_COLUMNS)
        return numbers_of(flat[:, ::stride][:, :_MOST_COLUMNS]).astype(np.float64)
    words = numbers_of(flat[:, : 4 * _MOST_COLUMNS]).astype(np.int64)
    places = words % _MOST_COLUMNS + _MOST_COLUMNS * np.arange(rows)[:, None]
    return np.bincount(places.reshape(-1), minlength=rows * _MOST_COLUMNS).reshape(rows, _MOST_COLUMNS).astype(float)


def _between(table: Array, labels: Array) -> Array:
    """The part of each column's squares that lies between the means of the classes; without BLAS and its threads."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    sums, counts = np.add.reduceat(table[order], starts, axis=0), np.diff([*starts.tolist(), len(labels)])
    found: Array = (np.square(sums) / counts[:, None]).sum(0)
    return found
