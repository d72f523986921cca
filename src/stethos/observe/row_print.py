"""Checksums of the single samples of a batch: whether samples come again, and whether those of an evaluation do."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch

from stethos.observe.batch_print import is_readable, numbers_of

_MOST_ROWS = 64  # of a batch
_MOST_ELEMENTS = 256  # of a row
_MOST_KNOWN = 50_000
_LEAST_NUMBERS = 5  # different ones in a row, else rows are alike by chance: a state out of nine, an empty picture


def row_prints(inputs: torch.Tensor | None) -> list[int]:
    """A checksum of each of the first rows; nothing if rows are too simple to be told apart, or cannot be read."""
    if inputs is None or inputs.dim() < 2 or not is_readable(inputs) or inputs.is_complex() or inputs.shape[0] < 2:
        return []
    table = numbers_of(inputs.detach()[:_MOST_ROWS].reshape(min(inputs.shape[0], _MOST_ROWS), -1)[:, :_MOST_ELEMENTS])
    if any(len(set(row.tolist())) < _LEAST_NUMBERS for row in (table[0], table[-1])):
        return []
    return [zlib.crc32(np.ascontiguousarray(row).tobytes()) for row in table]


class SeenRows:
    """The samples of inspected batches, as checksums."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._drawn = 0
        self._model: set[int] = set()
        self._restarts = 0

    def add(self, inputs: torch.Tensor | None, model: set[int], restarts: int = 0) -> dict[str, Any]:
        """Note the samples of a training batch: how many were looked at, how many of them are different.

        `model` are the ids of its weights: one that shares none with the last has seen nothing of what that one saw.
        Nor has one that began anew in place, of which `restarts` is the count.
        """
        if self._model.isdisjoint(model) or restarts != self._restarts:
            self._known.clear()
            self._drawn = 0
        self._model, self._restarts = model, restarts
        prints = row_prints(inputs)
        if not prints:
            return {}
        if len(self._known) < _MOST_KNOWN:
            self._known.update(prints)
        self._drawn += len(prints)
        return {"rows": len(prints), "distinct": len(set(prints)), "drawn": self._drawn, "known": len(self._known)}

    def overlap(self, inputs: torch.Tensor | None) -> dict[str, Any]:
        """How many samples of an evaluation have been trained on."""
        prints = set(row_prints(inputs))
        return {"rows": len(prints), "trained_on": len(prints & self._known)} if prints else {}
