"""Finished segments become Parquet: one file per table, rows in order, pages checksummed."""

from __future__ import annotations

import mmap
import os
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stethos.record.arrow import constant_array, full_schema, read_batch, read_schema, segment_schema
from stethos.record.segment import FLAG_SCHEMA, scan
from stethos.record.whole_file import whole_file
from stethos.schema import RECORDED, Kind, Table


@dataclass(slots=True)
class SegmentRows:
    """What one segment file holds: whole batches by table, and how many rows could not be read."""

    batches: dict[int, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    rows: int = 0
    lost: int = 0
    end_rows: int = 0

    def table(self, table: Table, process: str, rank: int | None) -> pa.Table:
        """One table's rows in the full schema, with the process's columns added."""
        found = self.batches.get(table.number, [])
        size = sum(batch.num_rows for batch in found)
        rows = pa.Table.from_batches(found) if found else None
        schema = full_schema(table)
        columns = []
        for column, arrow in zip(table.all_columns, schema, strict=True):
            if column.name == "process":
                columns.append(constant_array(process, size, Kind.NAME))
            elif column.name == "rank":
                columns.append(constant_array(rank, size, Kind.I32))
            elif rows is not None and column.name in rows.column_names:
                columns.append(rows.column(column.name).cast(arrow.type))
            else:
                columns.append(pa.nulls(size, arrow.type))
        return pa.Table.from_arrays(columns, schema=schema)


def map_file(path: Path) -> memoryview:
    """A file's bytes as they are now; empty if it has none."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)) if size else memoryview(b"")


def read_segment(path: Path, rows_before: int = 0) -> SegmentRows:
    """Every whole block of a segment; rows missing before or between them are counted.

    `rows_before` is how many rows its process had stored when the segment began.
    """
    found = SegmentRows(end_rows=rows_before)
    schemas: dict[int, pa.Schema] = {}
    for block in scan(map_file(path)):
        if block.flags & FLAG_SCHEMA:
            schemas[block.table] = read_schema(block.payload)
        if block.rows_before > found.end_rows:
            found.lost += block.rows_before - found.end_rows
        if block.is_batch and block.table in RECORDED:
            schema = schemas.get(block.table) or segment_schema(RECORDED[block.table])
            found.batches[block.table].append(read_batch(block.payload, schema))
            found.rows += block.rows
        found.end_rows = block.rows_before + block.rows
    return found


@dataclass(frozen=True, slots=True)
class SealedFile:
    """One Parquet file of a process, as its manifest lists it; `crc32` is that of the whole file."""

    file: str
    table: str
    rows: int
    bytes: int
    crc32: int


def seal_segment(
    segment: Path, number: int, directory: Path, process: str, rank: int | None, rows_before: int, rows_after: int
) -> tuple[list[SealedFile], int]:
    """Write a segment's rows as Parquet files; return them and the number of rows lost to damage.

    `rows_before` and `rows_after` are how many rows its process had stored when the segment began and ended.
    """
    rows = read_segment(segment, rows_before)
    sealed: list[SealedFile] = []
    for table_number in sorted(rows.batches):
        table = RECORDED[table_number]
        path = directory / f"{number:06d}.{table.name}.parquet"
        content = rows.table(table, process, rank)
        write_parquet(content, path, table)
        data = map_file(path)
        sealed.append(SealedFile(path.name, table.name, content.num_rows, len(data), zlib.crc32(data)))
    return sealed, rows.lost + max(0, rows_after - rows.end_rows)


def write_parquet(content: pa.Table, path: Path, table: Table) -> None:
    """Write a file under a temporary name, sync it, then give it its name."""
    names = [column.name for column in table.all_columns if column.kind is Kind.NAME]
    numbers = [column.name for column in table.all_columns if column.kind is Kind.F64]
    with whole_file(path, is_sole=True) as file:
        pq.write_table(
            content, file, compression="zstd", compression_level=1, use_dictionary=names,
            use_byte_stream_split=numbers, row_group_size=16_384, write_page_checksum=True,
        )  # fmt: skip
