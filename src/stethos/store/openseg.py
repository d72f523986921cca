"""The segment a drainer is writing: what is whole in it right now."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.record.segment import FLAG_SCHEMA, Block, scan
from stethos.schema import RECORDED, Kind, Table

if TYPE_CHECKING:
    import pyarrow as pa


class OpenSegment:
    """Whole blocks of one segment file, copied out of it so that its writer may cut it back meanwhile.

    Counting needs the standard library only; `arrow` imports pyarrow.
    """

    def __init__(self, rows_before: int, data: bytes = b"") -> None:
        self.rows_by_table: dict[int, int] = defaultdict(int)
        self.lost = 0
        self.end_rows = rows_before
        self._schemas: dict[int, Block] = {}
        self._batches: dict[int, list[Block]] = defaultdict(list)
        for block in scan(memoryview(data)):
            self._take(block)

    def _take(self, block: Block) -> None:
        if block.flags & FLAG_SCHEMA:
            self._schemas[block.table] = block
        if block.rows_before > self.end_rows:
            self.lost += block.rows_before - self.end_rows
        if block.is_batch and block.table in RECORDED:
            self._batches[block.table].append(block)
            self.rows_by_table[block.table] += block.rows
        self.end_rows = block.rows_before + block.rows

    @property
    def rows(self) -> int:
        return sum(self.rows_by_table.values())

    def arrow(self, table: Table, process: str, rank: int | None) -> pa.Table:
        """One table's rows in the full schema."""
        import pyarrow as pa

        from stethos.record.arrow import constant_array, full_schema, read_batch, read_schema, segment_schema

        written = self._schemas.get(table.number)
        schema = read_schema(written.payload) if written else segment_schema(table)
        rows = pa.Table.from_batches(
            [read_batch(block.payload, schema) for block in self._batches[table.number]], schema
        )
        own = {
            "process": constant_array(process, rows.num_rows, Kind.NAME),
            "rank": constant_array(rank, rows.num_rows, Kind.I32),
        }
        return in_schema(rows, full_schema(table), own)


def in_schema(rows: pa.Table, schema: pa.Schema, own: Mapping[str, pa.Array] | None = None) -> pa.Table:
    """The rows with just these columns: from `own`, from the rows, or NULL. Nothing is copied that fits."""
    import pyarrow as pa

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


def read_open_segment(path: Path, rows_before: int) -> OpenSegment:
    """Everything whole in the file; FileNotFoundError if it has been sealed meanwhile."""
    return OpenSegment(rows_before, path.read_bytes())


def version_of(path: Path) -> tuple[int, ...]:
    """Changes whenever the file does; empty if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns
