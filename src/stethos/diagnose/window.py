"""What detectors look at: the tables of a run up to now, as plain columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from stethos.schema import NULL_F64, NULL_F64_BITS

if TYPE_CHECKING:
    from stethos.store.run import Run

Array = npt.NDArray[Any]
Made = TypeVar("Made")


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


class Window:
    """The rows of a run that detectors read; hand-made in tests, from SQL over a run otherwise.

    `frame(table)` is empty for a table without rows. `is_live`: the run still
    goes on, so that "not yet" is no fault.
    """

    def __init__(self, frames: Mapping[str, Frame] | None = None, *, is_live: bool = False) -> None:
        self._frames = dict(frames or {})
        self._derived: dict[Callable[[Window], Any], Any] = {}
        self.is_live = is_live

    def frame(self, table: str) -> Frame:
        return self._frames.get(table, Frame({}))

    def has(self, table: str, columns: frozenset[str] = frozenset()) -> bool:
        """Whether the table has rows, and each of the columns a value that is not NULL."""
        return not self.missing(table, columns)

    def missing(self, table: str, columns: frozenset[str]) -> str:
        """Why a table cannot be used, in words; "" if it can."""
        frame = self.frame(table)
        if not len(frame):
            return f"no rows in `{table}`"
        for column in sorted(columns):
            if column not in frame or not _has_values(frame[column]):
                return f"`{table}.{column}` was not recorded"
        return ""

    def derive(self, make: Callable[[Window], Made]) -> Made:
        """What a function makes of this window; made once, whoever asks."""
        if make not in self._derived:
            self._derived[make] = make(self)
        return cast("Made", self._derived[make])

    @cached_property
    def is_federated(self) -> bool:
        return len(self.frame("client_rounds")) > 0 or len(self.frame("rounds")) > 0


class RunWindow(Window):
    """A window over a run: each table is read when a detector first asks for it."""

    def __init__(self, run: Run, needs: Mapping[str, frozenset[str]], *, is_live: bool = False) -> None:
        super().__init__(is_live=is_live)
        self._run = run
        self._needs = needs

    def frame(self, table: str) -> Frame:
        if table not in self._frames:
            self._frames[table] = self._read(table)
        return self._frames[table]

    def _read(self, table: str) -> Frame:
        columns = ", ".join(f'"{name}"' for name in sorted(self._needs.get(table, frozenset())))
        if not columns:
            return Frame({})
        found = self._run.sql(f"SELECT {columns} FROM {table}", timeout_s=120)
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


def _has_values(values: Array) -> bool:
    if values.dtype.kind == "f":
        return not is_null(values).all()
    return any(value is not None for value in values.tolist())
