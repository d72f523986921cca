"""Looks after an archive: merges small files, deletes runs, lists lost ones.

Readers see the state before or the one after.
"""

from __future__ import annotations

import io
import time
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stethos.archive.address import Address
from stethos.archive.cache import open_archived
from stethos.archive.catalogue import Catalogue, catalogue_row
from stethos.archive.committer import alone, delta_file, log_files
from stethos.archive.delta import DeltaLog
from stethos.archive.objects import Objects
from stethos.archive.place import CATALOGUE, STATE, ArchivedRun
from stethos.archive.snapshot import ArchivedFile
from stethos.errors import ArchiveError, UsageError
from stethos.record.arrow import full_schema, in_schema
from stethos.record.segment import parquet_options
from stethos.schema import RECORDED, TABLES

if TYPE_CHECKING:
    import pyarrow as pa

_SMALL_BYTES = 64 << 20  # files below are merged
_MERGED_BYTES = 128 << 20  # until they are about so large
_GROUP_ROWS = 122_880


def compact_run(address: Address) -> tuple[int, int]:
    """Merge the small files of each process and table, in order; return how many files there were and are.

    The rows stay as they are, and so does their order. Files that are merged are deleted once no snapshot names them.
    A Delta log that was lost is made anew.
    """
    with alone(address):
        there = ArchivedRun(address)
        snapshot = there.snapshot()
        assert snapshot is not None
        before = len(snapshot.files)
        for table in sorted({file.table for file in snapshot.files} & {table.name for table in RECORDED.values()}):
            log_files(address, table, (), snapshot.files)
        merged: list[tuple[list[ArchivedFile], ArchivedFile]] = []
        for group in _groups(snapshot.files):
            new = _merged(there.objects, group)
            merged.append((group, new))
        if not merged:
            return before, before
        gone = {file.path for group, _ in merged for file in group}
        kept = [file for file in snapshot.files if file.path not in gone]
        snapshot.files = sorted([*kept, *(new for _, new in merged)], key=lambda file: file.path)
        for table in {new.table for _, new in merged}:
            gone |= _commit(DeltaLog(address / table), table, snapshot.files)
        snapshot.sequence, snapshot.archived_ns = snapshot.sequence + 1, time.time_ns()
        there.commit(snapshot)
        catalogue = Catalogue(address.parent)
        row = next((row for row in catalogue.rows() if row["run"] == snapshot.run), None)
        if row is not None:
            row |= {"sequence": snapshot.sequence, "archived_ns": snapshot.archived_ns, "files": None}
            catalogue.put(row | {"size_bytes": snapshot.bytes})
        for path in sorted(gone):
            there.objects.delete(path)
        return before, len(snapshot.files)


def list_missing(archive: Address) -> list[str]:
    """List the runs that are archived but not listed, as after the list was lost; return their names."""
    catalogue = Catalogue(archive)
    listed = {str(row["run"]) for row in catalogue.rows()}
    found = []
    for name in Objects(archive).directories():
        if name in listed or name == CATALOGUE:
            continue
        with alone(archive / name):
            snapshot = ArchivedRun(archive / name).snapshot(is_needed=False)
            if snapshot is not None and snapshot.run == name:
                catalogue.put(catalogue_row(open_archived(archive / name), snapshot))
                found.append(name)
    return found


def _groups(files: list[ArchivedFile]) -> Iterator[list[ArchivedFile]]:
    """Neighbours that become one file: of one process and table, in the order of their numbers."""
    keys = sorted({(file.process, file.table) for file in files})
    for process, table in keys:
        own = sorted((f for f in files if (f.process, f.table) == (process, table)), key=lambda file: file.name)
        group: list[ArchivedFile] = []
        for file in own:
            is_small = file.bytes < _SMALL_BYTES and "to" not in file.path.rpartition("/")[2].rsplit("-", 2)[1]
            if not is_small or sum(one.bytes for one in group) + file.bytes > _MERGED_BYTES:
                if len(group) > 1:
                    yield group
                group = []
            if is_small:
                group.append(file)
        if len(group) > 1:
            yield group


def _merged(objects: Objects, group: list[ArchivedFile]) -> ArchivedFile:
    """Write one file with the rows of several, in their order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first, last = group[0], group[-1]
    table = TABLES[first.table]
    schema = full_schema(table)
    content = io.BytesIO()
    rows = written = 0
    waiting: list[pa.Table] = []
    try:
        with pq.ParquetWriter(content, schema, **parquet_options(table)) as writer:
            for file in group:
                waiting.append(_read(objects, file, schema))
                rows += waiting[-1].num_rows
                if rows - written >= _GROUP_ROWS or file is last:
                    # Groups of the size that DuckDB reads at once; names of several files need one dictionary.
                    whole = pa.concat_tables(waiting).unify_dictionaries()
                    ready = whole.num_rows if file is last else whole.num_rows - whole.num_rows % _GROUP_ROWS
                    writer.write_table(whole.slice(0, ready), row_group_size=_GROUP_ROWS)
                    waiting, written = [whole.slice(ready)], written + ready
    except pa.ArrowException as error:
        raise ArchiveError(f"{objects.address}: a file of {first.table} cannot be merged: {error}") from None
    except FileNotFoundError:
        raise ArchiveError(f"{objects.address}: a file of {first.table} is missing") from None
    if rows != sum(file.rows for file in group):
        raise ArchiveError(f"{objects.address}: files of {first.table} do not hold the rows they should")
    numbers = [file.name.partition(".")[0] for file in (first, last)]
    crc32 = zlib.crc32(content.getbuffer())
    path = f"{first.table}/{first.process}-{numbers[0]}to{numbers[1]}-{crc32:08x}.parquet"
    name = f"9{int(numbers[0]):08d}.{first.table}.parquet"
    objects.put(path, content.getbuffer())
    spans = [file.rounds for file in group]
    known = [span for span in spans if span is not None]
    span = (
        (min(low for low, _ in known), max(high for _, high in known)) if known and len(known) == len(spans) else None
    )
    return ArchivedFile(path, first.process, name, first.table, rows, len(content.getbuffer()), crc32, span)


def _read(objects: Objects, file: ArchivedFile, schema: pa.Schema) -> pa.Table:
    """The rows of a file that is to be merged; ArchiveError if it is damaged."""
    import pyarrow.parquet as pq

    content = objects.read(file.path)
    if file.crc32 is not None and zlib.crc32(content) != file.crc32:
        raise ArchiveError(f"{objects.address}/{file.path} is damaged: it is not merged")
    return in_schema(pq.read_table(io.BytesIO(content)), schema)


def _commit(log: DeltaLog, table: str, files: list[ArchivedFile]) -> set[str]:
    """Have the log of a table list just these files of it; return which it lists no more.

    It may list one that a killed compaction has made: the rows of that one are in other files.
    """
    listed = {file.path: file for file in log.files()}
    wanted = {file.path: file for file in map(delta_file, (one for one in files if one.table == table))}
    added = [file for path, file in wanted.items() if path not in listed]
    removed = [file for path, file in listed.items() if path not in wanted]
    if added or removed:
        log.commit(added, removed, schema=full_schema(TABLES[table]))
    return {f"{table}/{file.path}" for file in removed}


def remove_run(address: Address) -> None:
    """Delete an archived run: first it is listed and found no more, then its files go. Can be repeated."""
    if address.name in ("", CATALOGUE):
        raise UsageError("which run?", hint="name one: stethos rm ADDRESS/RUN")
    with alone(address):
        there = ArchivedRun(address)
        catalogue = Catalogue(address.parent)
        is_listed = catalogue.sequence_of(address.name) is not None
        there.snapshot(is_needed=not is_listed)  # listed without one: an earlier deletion was interrupted
        if is_listed:
            catalogue.forget(address.name)
        there.objects.delete_below(f"{STATE}/_delta_log")
        there.objects.delete_below(STATE)
        there.objects.delete_below("")
