"""Numbers of tables, from SQL or from the windows of the detectors: known ones, durations, medians."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stethos.store.frame import Array, Frame

if TYPE_CHECKING:
    from stethos.store.run import Run

Grid = npt.NDArray[np.float64]
_TIMEOUT_S = 120.0


def records(run: Run, sql: str) -> list[dict[str, Any]]:
    """The rows of a query by the names of their columns."""
    return run.rows(sql, timeout_s=_TIMEOUT_S).records()


def numbers_in(columns: Frame, name: str) -> Array:
    """A column of numbers; all NaN where it is missing or was never recorded."""
    if name in columns and columns[name].dtype.kind == "f":
        return columns[name]
    return np.full(len(columns), math.nan)


def durations_in(columns: Frame, name: str) -> Array:
    """A column of durations; a negative or infinite one, as a stepped clock leaves it, counts as unknown."""
    values = numbers_in(columns, name)
    return np.where(np.isfinite(values) & (values >= 0), values, math.nan)


def median_of(values: Array) -> float:
    """The median of what is known; NaN if nothing is."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else math.nan


def known_or_none(value: float) -> float | None:
    """The number; None for NaN and infinities."""
    return float(value) if math.isfinite(value) else None
