"""Rows of a client without what cannot be meant: a client may send anything, and its rows are read beside others'."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from stethos.collect.filter import numbers_of
from stethos.record.arrow import number_array
from stethos.schema import NULL_F64, NULL_I64, Kind

_MEASURED = ("_ms", "_s", "_bytes", "_share")  # by the clock or the machine: never negative, and never infinite
_KINDS = {pa.float64(): (Kind.F64, NULL_F64), pa.int64(): (Kind.I64, NULL_I64)}


def meant(name: str, column: pa.Array, t_ns: int) -> pa.Array:
    """A column as a client sent it; NULL where a time, a size or a share is none. A row without a time has `t_ns`."""
    if name == "t_ns" and column.null_count:
        values, nulls = numbers_of(column)
        values[nulls] = t_ns
        return number_array(values, Kind.I64)
    if column.type not in _KINDS or not name.endswith(_MEASURED):
        return column
    values, nulls = numbers_of(column)
    odd = ~(np.isfinite(values) & (values >= 0))
    if not odd.any():
        return column
    kind, null = _KINDS[column.type]
    values[nulls | odd] = null
    return number_array(values, kind)
