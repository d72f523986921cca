"""Writes a run's tables as Parquet or CSV files, one per table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stethos.errors import QueryError
from stethos.export.csv_text import plain_batch
from stethos.export.output import ExportResult, no_progress, replacing
from stethos.schema import TABLES, Source, Table
from stethos.view.stream import Advance

if TYPE_CHECKING:
    import pyarrow as pa

    from stethos.store.run import Run


class _Writer(Protocol):
    def write_batch(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


def tables_to_write() -> list[Table]:
    """Every table that is stored: not made of others, nor looked up in live processes."""
    return [table for table in TABLES.values() if table.source not in (Source.VIEW, Source.LIVE)]


def paths_in(directory: Path, kind: str, tables: Sequence[Table]) -> dict[str, Path]:
    return {table.name: directory / f"{table.name}.{kind}" for table in tables}


def write(run: Run, directory: Path, kind: str, *, advance: Advance = no_progress) -> ExportResult:
    """Write every table; each file appears when it is whole. Damaged blocks are left out."""
    tables = tables_to_write()
    counts = {}
    for table in tables:
        with replacing(paths_in(directory, kind, [table])[table.name]) as temporary:
            counts[table.name] = 0
            for rows in _write_table(run, table, temporary, kind):
                counts[table.name] += rows
                advance(rows)
    return ExportResult(str(directory), counts)


def _write_table(run: Run, table: Table, path: Path, kind: str) -> Iterator[int]:
    import duckdb
    import pyarrow as pa

    try:
        batches = run.batches(table)
        writer = _writer(path, batches.schema, kind)
        try:
            for batch in batches:
                writer.write_batch(plain_batch(batch) if kind == "csv" else batch)
                yield batch.num_rows
        finally:
            writer.close()
    except (duckdb.Error, pa.ArrowException) as error:
        raise QueryError(f"the rows of {table.name} cannot be read: {error}", hint="see `stethos doctor`") from None


def _writer(path: Path, schema: pa.Schema, kind: str) -> _Writer:
    if kind == "csv":
        from pyarrow import csv

        return csv.CSVWriter(str(path), schema)  # type: ignore[no-any-return]
    from pyarrow import parquet

    return parquet.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)  # type: ignore[no-any-return]
