"""Arrow arrays from ring bytes, and the Arrow schema of each table.

Arrays are built from buffers: `pyarrow.array` would import pandas where it
is installed, at a second of CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stethos.schema import NULL_F64_BITS, NULL_I32, NULL_I64, Column, Kind, Table

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


def serialize_batch(batch: pa.RecordBatch) -> memoryview:
    """The batch as an IPC message, left in Arrow's memory."""
    return memoryview(batch.serialize())


def read_batch(payload: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """A record batch over the block's memory, without a copy."""
    return pa.ipc.read_record_batch(pa.py_buffer(payload), schema)


def read_schema(payload: memoryview) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(payload))
