"""Record batches from what a tap has read: whole columns at a time, no work per row and little per frame."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stethos.record.arrow import arrow_type, number_array, segment_schema, stored_columns, text_array
from stethos.record.layout import SLOT_BYTES
from stethos.record.names import Names
from stethos.record.tap import SLOT_DTYPES, Frame
from stethos.redact import redact
from stethos.schema import (
    CONTEXT_COLUMNS,
    NULL_F64,
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

Vector = npt.NDArray[Any]
_TABLE = np.dtype({"names": ["table"], "formats": ["<u2"], "offsets": [8], "itemsize": SLOT_BYTES})
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
            str if table is UPDATES else redact,  # its texts are numbers, in which a secret may be seen
        )

    def batch(self, arrays: dict[str, pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([arrays[column.name] for column in self.columns], schema=self.schema)


_PLANS = {number: _Plan.of(table) for number, table in RECORDED.items() if table.source is not Source.DRAINER}


def slot_batches(slots: npt.NDArray[np.uint8], names: Names) -> dict[int, pa.RecordBatch]:
    """One batch per table for slots as `Tap.read_slots` gives them; void ones are left out."""
    if not len(slots):
        return {}
    tables = slots.view(_TABLE)["table"].ravel()
    found = [int(tables[0])] if (tables == tables[0]).all() else np.unique(tables).tolist()
    batches = {}
    for number in found:
        if number in SLOT_DTYPES:
            mine = slots if len(found) == 1 else slots[tables == number]
            batches[number] = _slot_batch(number, mine.view(SLOT_DTYPES[number]).ravel(), names)
    return batches


def _slot_batch(number: int, rows: npt.NDArray[np.void], names: Names) -> pa.RecordBatch:
    plan = _PLANS[number]
    values: dict[str, Vector] = {column.name: np.ascontiguousarray(rows[column.name]) for column in plan.columns}
    if number == STEPS.number:
        values |= _finished_steps(values)
    return plan.batch({column.name: _array(column, values[column.name], names) for column in plan.columns})


def _finished_steps(values: dict[str, Vector]) -> dict[str, Vector]:
    """Steps come with durations in ns and zeros for what did not happen; give them their units and NULLs."""
    is_first, has_batch, has_backward = values["local_step"] == 0, values["data_ms"] > 0, values["backwards"] != 0
    known = {
        "step_ms": ~is_first & (values["step_ms"] >= 0),  # else the previous step was another optimizer's, or none
        "data_ms": has_batch,
        "forward_ms": (has_batch | ~is_first) & (values["forward_ms"] > 0) & has_backward,
        "backward_ms": (values["backward_ms"] > 0) & has_backward,
        "optimizer_ms": np.True_,
    }
    finished: dict[str, Vector] = {
        name: np.where(is_known, values[name] * 1e-6, NULL_F64) for name, is_known in known.items()
    }
    return finished | {"samples": np.where(has_batch | (values["samples"] > 0), values["samples"], np.int32(NULL_I32))}


def frame_batches(frames: Sequence[Frame], names: Names) -> dict[int, pa.RecordBatch]:
    """One batch per table for frames as `Tap.read_frames` gives them; names and notes are left out."""
    grouped: dict[int, list[Frame]] = defaultdict(list)
    for frame in frames:
        if frame.table in _PLANS and frame.rows:
            grouped[frame.table].append(frame)
    return {number: _frame_batch(_PLANS[number], group, names) for number, group in grouped.items()}


def _frame_batch(plan: _Plan, frames: Sequence[Frame], names: Names) -> pa.RecordBatch:
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

    def __init__(self, plan: _Plan, frames: Sequence[Frame], names: Names) -> None:
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
            values[:, index * self._rows : (index + 1) * self._rows] = body.reshape(len(columns), self._rows)
        for index, column in enumerate(columns):
            self.arrays[column.name] = number_array(values[index], column.kind)


def _array(column: Column, values: Vector, names: Names) -> pa.Array:
    return names.of(values) if column.kind is Kind.NAME else number_array(values, column.kind)


def _concatenated(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
