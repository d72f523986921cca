"""Write a run's tables as files, one per table.

    stethos export --to parquet -o DIR

Files that exist are kept unless --force is given. Damaged blocks are left out and counted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stethos.cli.target import add_target, open_target
from stethos.cli.text import bytes_text, clean, count_text
from stethos.errors import UsageError
from stethos.schema import TABLES, Source, Table

if TYPE_CHECKING:
    import pyarrow as pa

    from stethos.store.run import Run

FORMATS = ("parquet", "csv")


class _Writer(Protocol):
    def write_batch(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--to", choices=FORMATS, default="parquet", help="the files' format (default: parquet)")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", required=True, help="where the files go")
    parser.add_argument("--force", action="store_true", help="replace files that exist")


def run(arguments: argparse.Namespace) -> int:
    tables = [table for table in TABLES.values() if table.source not in (Source.VIEW, Source.LIVE)]
    output: Path = arguments.output
    paths = {table.name: output / f"{table.name}.{arguments.to}" for table in tables}
    existing = [path for path in paths.values() if path.exists()]
    if existing and not arguments.force:
        raise UsageError(f"{existing[0]} exists", hint="choose another directory, or replace files with --force")
    with open_target(arguments) as one:
        try:
            output.mkdir(parents=True, exist_ok=True)
            rows = _write_all(one, tables, paths, arguments.to)
        except OSError as error:
            raise UsageError(f"cannot write to {output}: {error.strerror or error}", hint="choose another directory with -o DIR") from None  # fmt: skip  # noqa: E501
        lost = one.summary()["rows_lost"]
    size = sum(path.stat().st_size for path in paths.values())
    print(f"{count_text(rows)} rows in {len(paths)} files, {bytes_text(size)}: {clean(str(output))}")
    if lost:
        sys.stderr.write(f"{count_text(lost)} rows of the run are lost; see `stethos doctor`\n")
    return 0


def _write_all(one: Run, tables: list[Table], paths: dict[str, Path], to: str) -> int:
    expected = one.tables()
    done = 0
    with _progress(sum(expected[table.name] for table in tables)) as advance:
        for table in tables:
            temporary = paths[table.name].with_name(f".{paths[table.name].name}.part")
            try:
                for count in _write_table(one, table, temporary, to):
                    done += count
                    advance(count)
                os.replace(temporary, paths[table.name])
            finally:
                temporary.unlink(missing_ok=True)
    return done


def _write_table(one: Run, table: Table, path: Path, to: str) -> Iterator[int]:
    batches = one.batches(table)
    writer = _writer(path, batches.schema, to)
    try:
        for batch in batches:
            writer.write_batch(batch)
            yield batch.num_rows
    finally:
        writer.close()


def _writer(path: Path, schema: pa.Schema, to: str) -> _Writer:
    if to == "csv":
        from pyarrow import csv

        return csv.CSVWriter(str(path), schema)  # type: ignore[no-any-return]
    from pyarrow import parquet

    return parquet.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)  # type: ignore[no-any-return]


class _Advance(Protocol):
    def __call__(self, count: int) -> None: ...


@contextmanager
def _progress(total: int) -> Iterator[_Advance]:
    """A progress bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("rows", total=total)
        yield lambda count: progress.advance(task, count)
