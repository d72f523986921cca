"""A table as plain columns: what detectors and profiles reckon with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stethos.schema import NULL_F64, NULL_F64_BITS

if TYPE_CHECKING:
    from stethos.store.run import Run

Array = npt.NDArray[Any]
_TIMEOUT_S = 120.0


class Frame:
    """A table in memory, never written to: named columns of equal length.

    Numbers are float arrays, names and texts object arrays. NULL is the NaN that
    `is_null` knows from a real one.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any] | Array]) -> None:
        self._columns = {name: _array(values) for name, values in columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()))) if self._columns else 0

    def __getitem__(self, name: str) -> Array:
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def where(self, mask: Array) -> Frame:
        """The rows for which the mask holds."""
        return Frame({name: values[mask] for name, values in self._columns.items()})

    def sorted_by(self, *names: str) -> Frame:
        """The rows in the order of these columns, the first one first."""
        order = np.lexsort([self._columns[name] for name in reversed(names)]) if len(self) else np.array([], int)
        return Frame({name: values[order] for name, values in self._columns.items()})

    def groups(self, name: str) -> dict[Any, Frame]:
        """The rows by the value of a column, in order of first occurrence; rows where it is NULL are left out."""
        values = self._columns[name]
        found: dict[Any, list[int]] = {}
        for place, value in enumerate(values.tolist()):
            if value is not None and value == value:
                found.setdefault(value, []).append(place)
        return {value: self.where(np.array(places)) for value, places in found.items()}


def select(run: Run, sql: str) -> Frame:
    """The result of a query."""
    found = run.arrow(sql, timeout_s=_TIMEOUT_S)
    return Frame({name: _with_nulls(found.column(name)) for name in found.column_names})


def is_null(values: Array) -> Array:
    """Which numbers of a column were not recorded; a real NaN was."""
    mask: Array = np.ascontiguousarray(values, np.float64).view(np.int64) == NULL_F64_BITS
    return mask


def _with_nulls(column: Any) -> Array:
    """An Arrow column as an array in which NULL can be told from NaN."""
    values: Array = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f" and column.null_count:
        values = values.astype(np.float64)
        values.view(np.int64)[column.is_null().to_numpy(zero_copy_only=False)] = NULL_F64_BITS
    return values


def _array(values: Sequence[Any] | Array) -> Array:
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return values.astype(np.float64)
    listed = list(values)
    if all(value is None or isinstance(value, bool | int | float | np.number) for value in listed) and any(
        value is not None for value in listed
    ):
        return np.array([NULL_F64 if value is None else float(value) for value in listed])
    array = np.empty(len(listed), object)
    array[:] = listed
    return array
