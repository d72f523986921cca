"""A table as plain columns: what detectors and profiles reckon with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stethos.schema import NULL_F64, NULL_F64_BITS

if TYPE_CHECKING:
    from stethos.store.run import Run

Array = npt.NDArray[Any]
_TIMEOUT_S = 120.0
_DTYPES = {"double": "float64", "float": "float32", "bool": "bool"}
_DTYPES |= {name: name for name in (f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
_FEW_TEXTS = 100_000  # Arrow finds the different ones of more faster, once its functions are loaded, in 60 ms


class Frame:
    """A table in memory, never written to: named columns of equal length.

    Numbers are float arrays, names and texts object arrays. NULL is the NaN that
    `is_null` knows from a real one.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any] | Array]) -> None:
        self._columns = {name: _array(values) for name, values in columns.items()}

    @classmethod
    def _of(cls, columns: dict[str, Array]) -> Frame:
        """Columns that are as a frame has them."""
        frame = cls({})
        frame._columns = columns
        return frame

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
        return Frame._of({name: values[mask] for name, values in self._columns.items()})

    def sorted_by(self, *names: str) -> Frame:
        """The rows in the order of these columns, the first one first."""
        order = np.lexsort([self._columns[name] for name in reversed(names)]) if len(self) else np.array([], int)
        return Frame._of({name: values[order] for name, values in self._columns.items()})

    def groups(self, name: str) -> dict[Any, Frame]:
        """The rows by the value of a column, in order of first occurrence; rows where it is NULL are left out."""
        values = self._columns[name].tolist()
        numbers: dict[Any, int] = {value: number for number, value in enumerate(dict.fromkeys(values))}
        codes = np.fromiter(map(numbers.__getitem__, values), int, len(values))
        order, ends = np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes, minlength=len(numbers)))
        places = dict(zip(numbers, np.split(order, ends[:-1]), strict=True)) if numbers else {}
        return {value: self.where(own) for value, own in places.items() if value is not None and value == value}


def select(run: Run, sql: str) -> Frame:
    """The result of a query."""
    found = run.arrow(sql, timeout_s=_TIMEOUT_S)
    columns = {name: found.column(name) for name in found.column_names}
    return Frame._of(
        {name: _texts(one) if "string" in str(one.type) else _numbers(one) for name, one in columns.items()}
    )


def is_known(values: Array) -> Array:
    """Which names or texts of a column were recorded."""
    return np.asarray(values != None)  # noqa: E711  # elementwise


def is_null(values: Array) -> Array:
    """Which numbers of a column were not recorded; a real NaN was."""
    mask: Array = np.ascontiguousarray(values, np.float64).view(np.int64) == NULL_F64_BITS
    return mask


def _numbers(column: Any) -> Array:
    """An Arrow column as floats in which NULL can be told from NaN; one of other things than numbers as objects.

    Read from its buffers: Arrow's own way loads pandas where that is installed, which costs more than a small run.
    """
    dtype = _DTYPES.get(str(column.type))
    if dtype is None:
        return _array(column.to_numpy(zero_copy_only=False))
    if not len(column):
        return np.empty(0)
    array = column.combine_chunks()
    validity, data = array.buffers()
    last = array.offset + len(array)
    values = (_bits(data, last) if dtype == "bool" else np.frombuffer(data, dtype, last))[array.offset :]
    numbers: Array = values.astype(np.float64)
    if array.null_count:
        numbers.view(np.int64)[_bits(validity, last)[array.offset :] == 0] = NULL_F64_BITS
    return numbers


def _bits(buffer: Any, count: int) -> Array:
    return np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little", count=count)


def _texts(column: Any) -> Array:
    """A column of texts; equal ones are one object, as there are few of them in many rows."""
    if len(column) < _FEW_TEXTS:
        same: dict[str | None, str | None] = {}
        return _array([same.setdefault(text, text) for text in column.to_pylist()])
    coded = column.combine_chunks().dictionary_encode()
    coded = coded if hasattr(coded, "indices") else coded.combine_chunks()
    known = np.array([*coded.dictionary.to_pylist(), None], object)
    return np.asarray(known[coded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)])


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


def object_in(text: object) -> dict[str, Any]:
    """A JSON object; empty where there is none, as a client elsewhere may have sent anything."""
    try:
        told = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}
