"""Applies a policy to rows: the one place through which everything that leaves a site goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stethos.collect.policy import FACTS, ColumnRule, Policy
from stethos.collect.report import SOMETHING, error_type, frames_of, power_of_two
from stethos.record.arrow import arrow_type, number_array, segment_schema, stored_columns, text_array
from stethos.schema import NULL_F64, NULL_I32, NULL_I64, Column, Kind, Table

if TYPE_CHECKING:
    from stethos.collect.noise import NoiseSource

_DTYPES = {Kind.I32: np.int32, Kind.I64: np.int64, Kind.F64: np.float64}
_NULLS: dict[Kind, Any] = {Kind.I32: NULL_I32, Kind.I64: NULL_I64, Kind.F64: NULL_F64}
_SECOND_NS = 10**9
_TIMES = ("t_ns", "started_ns", "last_step_ns")
_DIGEST = re.compile("[0-9a-f]{32}")
Vector = npt.NDArray[Any]


def filtered(
    policy: Policy, table: Table, rows: pa.RecordBatch, noise: NoiseSource | None = None
) -> pa.RecordBatch | None:
    """The rows as they may leave, in the schema of their table; None if none may.

    Without a source of noise what may leave with noise alone stays.
    """
    if not policy.allows(table.name):
        return None
    samples = _samples_of(rows)
    columns = []
    for column in stored_columns(table):
        rule = policy.rule(table.name, column.name)
        enough = samples >= policy.least(rule)
        if rule.way == "noise" and noise is not None and column.name in rows.schema.names:
            columns.append(_noised(policy, table, column, rows, enough, noise))
        else:
            columns.append(_column(rule, column, rows, enough))
    return pa.RecordBatch.from_arrays(columns, schema=segment_schema(table))


def filtered_facts(policy: Policy, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What may be told about a process."""
    if policy.level == "L4":
        return {name: value for name, value in facts.items() if name not in ("host_key", "scratch", "origin", "site")}
    told: dict[str, Any] = {}
    for name, rule in FACTS.items():
        value = facts.get(name)
        if value is None:
            continue
        match rule.way:
            case "second":
                told[name] = whole_seconds(int(value))
            case "error-type":
                told[name] = error_type(str(value))
            case "frames":
                told[name] = frames_of(str(value))
            case _:
                told[name] = value
    return told


def filtered_counters(policy: Policy, counters: Mapping[str, int]) -> dict[str, int]:
    """How far a process has come, and when it ended, as it may be told."""
    told = dict(counters)
    if policy.level == "L4":
        return told
    told |= {name: whole_seconds(told[name]) for name in _TIMES if name in told}
    rounded = ("spent_ns",) if policy.level == "L2" else ("spent_ns", "steps")
    return told | {name: int(power_of_two(told[name])) for name in rounded if name in told}


def whole_seconds(t_ns: int) -> int:
    """A time in nanoseconds, to the second."""
    return t_ns // _SECOND_NS * _SECOND_NS


def _samples_of(rows: pa.RecordBatch) -> Vector:
    """About how many samples each row is; 0 where it does not say."""
    if "samples" not in rows.schema.names:
        return np.zeros(rows.num_rows, np.int64)
    values, nulls = numbers_of(rows.column("samples"))
    return np.where(nulls, 0, values)


def _column(rule: ColumnRule, column: Column, rows: pa.RecordBatch, enough: Vector) -> pa.Array:
    if rule.way in ("drop", "noise") or column.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, arrow_type(column.kind))
    found = rows.column(column.name)
    match rule.way:
        case "keep" if column.kind not in _DTYPES:
            return found
        case "error-type":
            return _texts(found, error_type)
        case "frames":
            return _texts(found, frames_of)
        case "digest":
            return _texts(found, lambda text: text if _DIGEST.fullmatch(text) else "")
        case "whether":
            return _texts(found, lambda _: SOMETHING)
    values, nulls = numbers_of(found)
    match rule.way:
        case "keep":  # made anew: beneath a NULL could stand what a number was before
            changed = values
        case "bucket":
            changed = _bucketed(values, 30 if column.kind is Kind.I32 else 61)
        case "second":
            changed = values // _SECOND_NS * _SECOND_NS
        case _:
            changed, nulls = _rounded(values, rule), nulls | ~enough
    made = changed.astype(_DTYPES[column.kind])
    made[nulls] = _NULLS[column.kind]
    return number_array(made, column.kind)


def _noised(
    policy: Policy, table: Table, column: Column, rows: pa.RecordBatch, enough: Vector, noise: NoiseSource
) -> pa.Array:
    """Shares and counts of samples, each clipped to what it can be and then with noise."""
    what, found = f"{table.name}.{column.name}", rows.column(column.name)
    if column.kind is Kind.TEXT:
        texts = [text if one else None for text, one in zip(found.to_pylist(), enough, strict=True)]
        return text_array(noise.counts(what, texts, policy.noise))
    values, nulls = numbers_of(found)
    samples = numbers_of(rows.column("samples"))[0].astype(np.int64).tolist()
    known = enough & ~nulls & np.isfinite(values)
    shares = [min(max(float(one), 0.0), 1.0) if is_known else None for one, is_known in zip(values, known, strict=True)]
    given = noise.shares(what, shares, samples, policy.noise)
    return number_array(np.array([NULL_F64 if one is None else one for one in given], np.float64), column.kind)


def numbers_of(array: pa.Array) -> tuple[Vector, Vector]:
    """The values of a column and which of them are NULL; a copy."""
    values = np.frombuffer(array.buffers()[1], array.type.to_pandas_dtype(), len(array) + array.offset)[array.offset :]
    nulls = np.zeros(len(array), bool)
    if array.null_count:
        bits = np.frombuffer(array.buffers()[0], np.uint8)
        nulls = np.unpackbits(bits, bitorder="little")[array.offset : array.offset + len(array)] == 0
    return np.where(nulls, values.dtype.type(0), values), nulls


def _bucketed(values: Vector, most: int) -> Vector:
    plain = np.where(np.isfinite(values) & (values > 0), values, 0).astype(np.float64)
    return np.where(plain > 0, np.exp2(np.minimum(np.ceil(np.log2(np.where(plain > 0, plain, 1.0))), most)), 0.0)


def _rounded(values: Vector, rule: ColumnRule) -> Vector:
    """To some significant digits, within bounds; what is not finite becomes NaN."""
    plain = np.clip(values.astype(np.float64), rule.low, rule.high)
    size = np.where((plain != 0) & np.isfinite(plain), np.abs(plain), 1.0)
    scale = 10.0 ** (rule.digits - 1 - np.floor(np.log10(size)))
    return np.where(np.isfinite(values), np.round(plain * scale) / scale, np.nan)


def _texts(array: pa.Array, change: Callable[[str], str]) -> pa.Array:
    return text_array([None if text is None else change(text) for text in array.to_pylist()])
