"""The names of one process, as Arrow texts for columns of their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stethos.record.arrow import name_array, text_array

_MOST_KEPT = 8
_MOST_ROWS = 100_000


class Names:
    """Texts by number.

    A sample has its layers in the same order as the last one, so what such a
    vector of numbers stands for is kept: looking it up and copying the texts
    was a sixth of what a row of `layers` took.
    """

    def __init__(self, texts: Sequence[str | None]) -> None:
        self._texts = text_array(texts)
        self._kept: dict[bytes, pa.Array] = {}

    def of(self, ids: npt.NDArray[np.int32]) -> pa.Array:
        """Ids below 0 are NULL, unknown ones are empty."""
        return name_array(ids, self._texts)

    def repeated(self, ids: npt.NDArray[np.int32], count: int) -> pa.Array:
        """The texts of a vector of ids, so many times over."""
        key, rows = ids.tobytes(), len(ids) * count
        kept = self._kept.get(key)
        if kept is None or len(kept) < rows:
            texts = self.of(ids)
            kept = pa.concat_arrays([texts] * count) if count > 1 else texts
            if rows <= _MOST_ROWS:
                if len(self._kept) >= _MOST_KEPT:
                    self._kept.clear()
                self._kept[key] = kept
        return kept.slice(0, rows)
