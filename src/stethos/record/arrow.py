"""Rows as Arrow has them: the schema of each table, arrays from ring bytes, and batches from what a tap has read.

Whole columns at a time, no work per row and little per frame. Arrays are built from buffers: `pyarrow.array` would
import pandas where it is installed, at a second of CPU.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stethos.record.tap import SLOT_DTYPES, RingFrame
from stethos.redact import redact
from stethos.schema import (
    CONTEXT_COLUMNS,
    EVIDENCE,
    MEDIA,
    NULL_F64,
    NULL_F64_BITS,
    NULL_I32,
    NULL_I64,
    RECORDED,
    STEPS,
    UPDATES,
    Column,
    Kind,
    Source,
    Table,
)

_ARROW_TYPE = {
    Kind.I32: pa.int32(),
    Kind.I64: pa.int64(),
    Kind.F64: pa.float64(),
    Kind.BOOL: pa.bool_(),
    Kind.NAME: pa.string(),
    Kind.TEXT: pa.string(),
}


def arrow_type(kind: Kind) -> pa.DataType:
    return _ARROW_TYPE[kind]


def arrow_field(column: Column) -> pa.Field:
    return pa.field(column.name, _ARROW_TYPE[column.kind])


def stored_columns(table: Table) -> tuple[Column, ...]:
    """The columns in a segment: all but `process` and `rank`, which are the same for a whole directory."""
    return tuple(column for column in table.all_columns if column.name not in ("process", "rank"))


def segment_schema(table: Table) -> pa.Schema:
    """What blocks of a segment hold."""
    return pa.schema([arrow_field(column) for column in stored_columns(table)])


def full_schema(table: Table) -> pa.Schema:
    """What Parquet files hold, and queries see."""
    return pa.schema([arrow_field(column) for column in table.all_columns])


def _validity(nulls: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    if not nulls.any():
        return None
    return pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes())


def number_array(values: npt.NDArray[np.generic], kind: Kind) -> pa.Array:
    """Numbers as they lie in a ring, with our NULL patterns turned into Arrow nulls."""
    values = np.ascontiguousarray(values)
    size = len(values)
    match kind:
        case Kind.F64:
            nulls = values.view(np.int64) == NULL_F64_BITS
        case Kind.I64 | Kind.I32:
            if values.dtype == np.float64:
                nulls = values.view(np.int64) == NULL_F64_BITS
                known = np.where(nulls, 0.0, values) if nulls.any() else values
                values = known.astype(np.int64 if kind is Kind.I64 else np.int32)
            else:
                nulls = values == (NULL_I64 if kind is Kind.I64 else NULL_I32)
        case Kind.BOOL:
            bits = np.packbits(values != 0, bitorder="little")
            return pa.Array.from_buffers(pa.bool_(), size, [None, pa.py_buffer(bits.tobytes())])
        case Kind.NAME | Kind.TEXT:
            raise AssertionError("text is not a number")
    return pa.Array.from_buffers(_ARROW_TYPE[kind], size, [_validity(nulls), pa.py_buffer(values)])


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """Texts as an array; what UTF-8 cannot say becomes a question mark."""
    encoded = [b"" if text is None else text.encode("utf-8", "replace") for text in texts]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    nulls = np.fromiter((text is None for text in texts), dtype=np.bool_, count=len(texts))
    return pa.Array.from_buffers(
        pa.string(), len(encoded), [_validity(nulls), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    )


def name_array(ids: npt.NDArray[np.int32], names: pa.Array) -> pa.Array:
    """Strings for name ids; ids below 0 are NULL, unknown ones are empty."""
    nulls = ids < 0
    if nulls.all():
        return pa.nulls(len(ids), pa.string())
    known = np.where(nulls | (ids >= len(names)), 0, ids).astype(np.int32)
    indices = pa.Array.from_buffers(pa.int32(), len(ids), [_validity(nulls), pa.py_buffer(known)])
    return pa.DictionaryArray.from_arrays(indices, names).dictionary_decode()


def constant_array(value: str | int | None, size: int, kind: Kind) -> pa.Array:
    """One value repeated, for `process` and `rank`."""
    if value is None:
        return pa.nulls(size, _ARROW_TYPE[kind])
    if kind in (Kind.NAME, Kind.TEXT):  # from buffers: decoding a dictionary would import pyarrow.compute, 60 ms
        text = str(value).encode("utf-8", "replace")
        offsets = np.arange(size + 1, dtype=np.int32) * np.int32(len(text))
        return pa.Array.from_buffers(pa.string(), size, [None, pa.py_buffer(offsets), pa.py_buffer(text * size)])
    return number_array(np.full(size, value, np.int32), Kind.I32)


def in_schema(rows: pa.Table, schema: pa.Schema, own: Mapping[str, pa.Array] | None = None) -> pa.Table:
    """The rows with just these columns: from `own`, from the rows, or NULL. Nothing is copied that fits."""
    columns: list[Any] = []
    for field in schema:
        if own and field.name in own:
            columns.append(own[field.name])
        elif field.name not in rows.column_names:
            columns.append(pa.nulls(rows.num_rows, field.type))
        else:  # `cast` imports pyarrow.compute, 30 ms: only where a run was written with other types
            column = rows.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def serialize_batch(batch: pa.RecordBatch) -> memoryview:
    """The batch as an IPC message, left in Arrow's memory."""
    return memoryview(batch.serialize())


def read_batch(payload: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """A record batch over the block's memory, without a copy."""
    return pa.ipc.read_record_batch(pa.py_buffer(payload), schema)


def checked_batch(payload: memoryview, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """As `read_batch`, of a block that a stranger may have written; ArrowInvalid if we cannot have."""
    try:
        message = pa.ipc.read_message(pa.py_buffer(payload))
    except EOFError:  # what Arrow says of no bytes, and of a message that ends all
        raise pa.ArrowInvalid("an empty block") from None
    if _is_compressed(message.metadata):  # it could unfold to any size
        raise pa.ArrowInvalid("a compressed batch")
    batch = read_batch(payload, schema)
    batch.validate(full=True)
    if batch.num_rows != rows:
        raise pa.ArrowInvalid(f"{batch.num_rows} rows instead of {rows}")
    return batch


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether a message, whose flat buffer Arrow has verified, has a field `compression` in its record batch."""
    content = metadata.to_pybytes()

    def place_of(table: int, field: int) -> int:
        entries = table - struct.unpack_from("<i", content, table)[0]
        at = 4 + 2 * field
        (size,) = struct.unpack_from("<H", content, entries)
        (offset,) = struct.unpack_from("<H", content, entries + at) if at < size else (0,)
        return table + offset if offset else 0

    try:
        header = place_of(struct.unpack_from("<I", content)[0], 2)
        return bool(place_of(header + struct.unpack_from("<I", content, header)[0], 3))
    except struct.error:
        return True


def checked_schema(payload: memoryview) -> pa.Schema:
    """As `read_schema`; ArrowInvalid if it has a type that no table has, or is none."""
    try:
        schema = read_schema(payload)
    except EOFError:
        raise pa.ArrowInvalid("an empty schema") from None
    odd = [str(field.type) for field in schema if field.type not in _ARROW_TYPE.values()]
    if odd:
        raise pa.ArrowInvalid(f"columns of type {', '.join(odd)}")
    if len(set(schema.names)) < len(schema.names):
        raise pa.ArrowInvalid("two columns of one name")
    return schema


def read_schema(payload: memoryview) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(payload))


# The names of a process ----------------------------------------------------------------------------------

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


# Batches -------------------------------------------------------------------------------------------------

Vector = npt.NDArray[Any]
_CONTEXT_DTYPE = {Kind.NAME: "<i4", Kind.I32: "<i4", Kind.I64: "<i8"}


@dataclass(frozen=True, slots=True)
class _Plan:
    """What every batch of a table needs to know of it, worked out once."""

    columns: tuple[Column, ...]
    names: tuple[Column, ...]
    numbers: tuple[Column, ...]
    texts: tuple[Column, ...]
    schema: pa.Schema
    clean: Callable[[str], str]

    @classmethod
    def of(cls, table: Table) -> _Plan:
        return cls(
            stored_columns(table),
            table.of_kind(Kind.NAME),
            table.of_kind(Kind.I32, Kind.I64, Kind.F64, Kind.BOOL),
            table.of_kind(Kind.TEXT),
            segment_schema(table),
            str if table in (UPDATES, EVIDENCE, MEDIA) else redact,  # numbers, or cleaned by the trainer
        )

    def batch(self, arrays: dict[str, pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([arrays[column.name] for column in self.columns], schema=self.schema)


_PLANS = {number: _Plan.of(table) for number, table in RECORDED.items() if table.source is not Source.DRAINER}


def slot_batches(
    slots: npt.NDArray[np.uint8], names: Names, dtypes: Mapping[int, np.dtype[np.void]] = SLOT_DTYPES
) -> dict[int, pa.RecordBatch]:
    """One batch per table for slots as `Tap.read_slots` gives them; void ones are left out."""
    if not len(slots):
        return {}
    tables = slots[:, 8:10].copy().view("<u2").ravel()
    found = [int(tables[0])] if (tables == tables[0]).all() else np.unique(tables).tolist()
    batches = {}
    for number in found:
        if number in dtypes:
            mine = slots if len(found) == 1 else slots[tables == number]
            batches[number] = _slot_batch(number, mine.view(dtypes[number]).ravel(), names)
    return batches


def _slot_batch(number: int, rows: npt.NDArray[np.void], names: Names) -> pa.RecordBatch:
    plan, fields = _PLANS[number], rows.dtype.names or ()
    values: dict[str, Vector] = {name: np.ascontiguousarray(rows[name]) for name in fields}
    if number == STEPS.number:
        values |= _finished_steps(values)
    return plan.batch(
        {
            column.name: _array(column, values[column.name], names)
            if column.name in values
            else pa.nulls(len(rows), arrow_type(column.kind))  # its writer was of an older version
            for column in plan.columns
        }
    )


def _finished_steps(values: dict[str, Vector]) -> dict[str, Vector]:
    """Steps come with durations in ns and zeros for what did not happen; give them their units and NULLs."""
    is_first, has_batch, has_backward = values["local_step"] == 0, values["data_ns"] > 0, values["backwards"] != 0
    known = {
        "step_ns": ~is_first & (values["step_ns"] >= 0),  # else the previous step was another optimizer's, or none
        "data_ns": has_batch,
        "forward_ns": (has_batch | ~is_first) & (values["forward_ns"] > 0) & has_backward,
        "backward_ns": (values["backward_ns"] > 0) & has_backward,
    }
    finished: dict[str, Vector] = {
        name.removesuffix("_ns") + "_ms": np.where(known.get(name, np.True_), value * 1e-6, NULL_F64)
        for name, value in values.items()
        if name.endswith("_ns") and name != "t_ns"
    }
    return finished | {"samples": np.where(has_batch | (values["samples"] > 0), values["samples"], np.int32(NULL_I32))}


def frame_batches(frames: Sequence[RingFrame], names: Names) -> dict[int, pa.RecordBatch]:
    """One batch per table for frames as `Tap.read_frames` gives them; names and notes are left out."""
    grouped: dict[int, list[RingFrame]] = defaultdict(list)
    for frame in frames:
        if frame.table in _PLANS and frame.rows:
            grouped[frame.table].append(frame)
    return {number: _frame_batch(_PLANS[number], group, names) for number, group in grouped.items()}


def _frame_batch(plan: _Plan, frames: Sequence[RingFrame], names: Names) -> pa.RecordBatch:
    stacks = [_Stack(plan, list(group), names) for _, group in groupby(frames, key=attrgetter("rows"))]
    arrays = {column: _concatenated([stack.arrays[column] for stack in stacks]) for column in stacks[0].arrays}
    for index, column in enumerate(plan.texts):
        texts: list[str | None] = []
        for frame in frames:  # of several rows the first has the texts
            texts.append(plan.clean(frame.texts[index]) or None)
            texts.extend([None] * (frame.rows - 1))
        arrays[column.name] = text_array(texts)
    return plan.batch(arrays)


class _Stack:
    """Columns of successive frames of one table with the same number of rows each, read as one matrix."""

    def __init__(self, plan: _Plan, frames: Sequence[RingFrame], names: Names) -> None:
        self._count, self._rows, self._names = len(frames), frames[0].rows, names
        self.arrays: dict[str, pa.Array] = {}
        for column in CONTEXT_COLUMNS:
            each = np.array([getattr(frame, column.name) for frame in frames], _CONTEXT_DTYPE[column.kind])
            self.arrays[column.name] = self._repeated(column, each)
        border = 4 * len(plan.names) * self._rows
        self._add_names(plan.names, np.array([np.frombuffer(frame.body[:border], "<i4") for frame in frames]))
        if plan.numbers:
            self._add_numbers(plan.numbers, [np.frombuffer(frame.body[border:], "<f8") for frame in frames])

    def _repeated(self, column: Column, each: Vector) -> pa.Array:
        """A value for every row of each frame; often there is none at all, as outside of a federation."""
        is_null = each < 0 if column.kind is Kind.NAME else each == (NULL_I64 if column.kind is Kind.I64 else NULL_I32)
        if is_null.all():
            return pa.nulls(len(each) * self._rows, arrow_type(column.kind))
        values = np.repeat(each, self._rows)
        if column.kind is Kind.NAME or is_null.any():
            return _array(column, values, self._names)
        return pa.Array.from_buffers(arrow_type(column.kind), len(values), [None, pa.py_buffer(values)])

    def _add_names(self, columns: Sequence[Column], ids: npt.NDArray[np.int32]) -> None:
        is_same = bool((ids == ids[0]).all())  # as layers are in every sample
        for index, column in enumerate(columns):
            mine = ids[:, index * self._rows : (index + 1) * self._rows]
            if is_same:
                self.arrays[column.name] = self._names.repeated(mine[0], self._count)
            else:
                self.arrays[column.name] = self._names.of(np.ascontiguousarray(mine).ravel())

    def _add_numbers(self, columns: Sequence[Column], bodies: Sequence[npt.NDArray[np.float64]]) -> None:
        """Numbers come as doubles, whatever they are; each is copied once, out of the ring and into its column."""
        values = np.empty((len(columns), self._count * self._rows))
        for index, body in enumerate(bodies):
            own = values[:, index * self._rows : (index + 1) * self._rows]
            known = len(body) // self._rows
            own[:known] = body.reshape(known, self._rows)
            own[known:] = NULL_F64  # its writer was of an older version
        for index, column in enumerate(columns):
            self.arrays[column.name] = number_array(values[index], column.kind)


def _array(column: Column, values: Vector, names: Names) -> pa.Array:
    return names.of(values) if column.kind is Kind.NAME else number_array(values, column.kind)


def _concatenated(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
