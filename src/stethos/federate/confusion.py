"""How often a model gave which answer to samples of which label."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_MOST_CLASSES = 1000
_MOST_WAITING = 1 << 14


class Confusion:
    """Counts pairs of label and answer, both whole numbers from 0; others are left out.

    Few pairs are only kept until somebody asks: inside a client's turn, where everything is cold,
    counting takes five times as long as after it.
    """

    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] | None = None
        self._waiting: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []

    def __bool__(self) -> bool:
        self._count()
        return self._counts is not None

    def add(self, labels: Any, answers: Any) -> None:
        """Tensors, arrays or lists, one answer for each label; ValueError if there are more of one than of the other.

        With more than a thousand classes nothing is counted: the table would be larger than what it tells.
        """
        rows, columns = _integers(labels), _integers(answers)
        if rows.shape != columns.shape:
            raise ValueError(f"{rows.size} labels and {columns.size} answers")
        self._waiting.append((rows, columns))
        if sum(len(one) for one, _ in self._waiting) > _MOST_WAITING:
            self._count()

    def _count(self) -> None:
        waiting, self._waiting = self._waiting, []
        for pairs in waiting:
            self._add(*pairs)

    def _add(self, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> None:
        if not rows.size:
            return
        known = 0 if self._counts is None else len(self._counts)
        size = max(known, _largest(rows) + 1, _largest(columns) + 1)
        if size > _MOST_CLASSES:
            is_counted = (rows >= 0) & (columns >= 0)
            if not is_counted.all():
                self._add(rows[is_counted], columns[is_counted])
            return
        counts = np.bincount(rows * size + columns, minlength=size * size).reshape(size, size)
        if self._counts is not None:
            counts[:known, :known] += self._counts
        self._counts = counts

    def text(self) -> str:
        """As JSON: a row per label, a column per answer."""
        self._count()
        return str(self._counts.tolist() if self._counts is not None else [])


def _largest(values: npt.NDArray[np.int64]) -> int:
    """Of numbers from 0; with a negative one among them, a number beyond all others."""
    return int(values.view(np.uint64).max())


def _integers(values: Any) -> npt.NDArray[np.int64]:
    """A copy in a row."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.array(values, dtype=np.int64).reshape(-1)
