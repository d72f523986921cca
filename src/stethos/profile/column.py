"""Tables as plain columns, from SQL or from the windows of the detectors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from stethos.store.run import Run

Array = npt.NDArray[Any]
Grid = npt.NDArray[np.float64]
_TIMEOUT_S = 120.0


class Columns(Protocol):
    """Named columns of equal length: numbers are float arrays with NaN for NULL, names object arrays."""

    def __len__(self) -> int: ...
    def __getitem__(self, name: str, /) -> Array: ...
    def __contains__(self, name: object, /) -> bool: ...


class Selected:
    """The result of a query."""

    def __init__(self, columns: dict[str, Array]) -> None:
        self._columns = columns

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()))) if self._columns else 0

    def __getitem__(self, name: str, /) -> Array:
        return self._columns[name]

    def __contains__(self, name: object, /) -> bool:
        return name in self._columns


def select(run: Run, sql: str) -> Selected:
    """Run a query over a run."""
    found = run.sql(sql, timeout_s=_TIMEOUT_S)
    columns: dict[str, Array] = {}
    for name in found.column_names:
        values = found.column(name).to_numpy(zero_copy_only=False)
        columns[name] = values.astype(np.float64) if values.dtype.kind in "fiub" else values
    return Selected(columns)


def records(run: Run, sql: str) -> list[dict[str, Any]]:
    """The rows of a query by the names of their columns."""
    result = run.rows(sql, timeout_s=_TIMEOUT_S)
    return [dict(zip(result.columns, row, strict=True)) for row in result.values]


def numbers_in(columns: Columns, name: str) -> Array:
    """A column of numbers; all NaN where it is missing or was never recorded."""
    if name in columns and columns[name].dtype.kind == "f":
        return columns[name]
    return np.full(len(columns), math.nan)


def durations_in(columns: Columns, name: str) -> Array:
    """A column of durations; a negative or infinite one, as a stepped clock leaves it, counts as unknown."""
    values = numbers_in(columns, name)
    return np.where(np.isfinite(values) & (values >= 0), values, math.nan)


def sql_text(text: str) -> str:
    """A string of SQL."""
    quoted = "'" + text.replace("'", "''") + "'"
    return "(" + quoted.replace("\0", "' || chr(0) || '") + ")" if "\0" in text else quoted


def median_of(values: Array) -> float:
    """The median of what is known; NaN if nothing is."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else math.nan


def known_or_none(value: float) -> float | None:
    """The number; None for NaN and infinities."""
    return float(value) if math.isfinite(value) else None
