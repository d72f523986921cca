"""Looks after an archive: merges small files, deletes runs, lists lost ones.

Readers see the state before or the one after.
"""

from __future__ import annotations

import io
import re
import time
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from stethos.archive.address import Address
from stethos.archive.cache import forget, open_archived
from stethos.archive.catalogue import Catalogue, catalogue_row, listed_files
from stethos.archive.committer import alone, delta_file, log_files
from stethos.archive.delta import DeltaLog, ForeignTableError
from stethos.archive.objects import Objects
from stethos.archive.place import CATALOGUE, STATE, ArchivedRun
from stethos.archive.snapshot import ArchivedFile
from stethos.errors import ArchiveError, StethosError, UsageError
from stethos.record.arrow import full_schema, in_schema
from stethos.record.place import is_name
from stethos.record.segment import GROUP_ROWS, parquet_options
from stethos.schema import RECORDED, TABLES

if TYPE_CHECKING:
    import pyarrow as pa

_SMALL_BYTES = 64 << 20  # files below are merged
_MERGED_BYTES = 128 << 20  # until they are about so large
# A sealed or merged file, or what an archiver that was killed has begun of one.
_SEALED = re.compile(r"\.?[A-Za-z0-9._-]+-[0-9]{6,9}(to[0-9]{6,9})?-[0-9a-f]{8}\.parquet(\.[0-9]+)?")


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
            row |= {"sequence": snapshot.sequence, "archived_ns": snapshot.archived_ns, "files": listed_files(snapshot)}
            catalogue.put(row | {"size_bytes": snapshot.bytes})
        for path in sorted(gone):
            there.objects.delete(path)
        return before, len(snapshot.files)


def list_missing(archive: Address, failed: Callable[[StethosError], None]) -> list[str]:
    """List the runs that are archived but not listed, as after the list was lost; return their names.

    `failed` hears of a run that cannot be read; the others are listed all the same.
    """
    catalogue = Catalogue(archive)
    listed = {str(row["run"]) for row in catalogue.rows()}
    found = []
    for name in Objects(archive).directories():
        if name in listed or not is_name(name):
            continue
        try:
            if _list_run(catalogue, archive / name):
                found.append(name)
        except StethosError as error:
            failed(error)
    return found


def _list_run(catalogue: Catalogue, address: Address) -> bool:
    """Add a run to the list; False if there is none."""
    with alone(address):
        snapshot = ArchivedRun(address).snapshot(is_needed=False)
        if snapshot is None or snapshot.run != address.name:
            return False
        catalogue.put(catalogue_row(open_archived(address), snapshot))
        return True


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
                if rows - written >= GROUP_ROWS or file is last:
                    # Names of several files need one dictionary.
                    whole = pa.concat_tables(waiting).unify_dictionaries()
                    ready = whole.num_rows if file is last else whole.num_rows - whole.num_rows % GROUP_ROWS
                    writer.write_table(whole.slice(0, ready), row_group_size=GROUP_ROWS)
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


def remove_run(address: Address) -> int:
    """Delete an archived run: first it is listed and found no more, then its files go. Can be repeated.

    Files below it that no archiver has made are left; return how many.
    """
    if address.name in ("", CATALOGUE) or "/" not in address.path:  # a bucket
        raise UsageError("which run?", hint="name one: stethos rm ADDRESS/RUN")
    with alone(address):
        there = ArchivedRun(address)
        catalogue = Catalogue(address.parent)
        is_listed = catalogue.sequence_of(address.name) is not None
        try:
            there.snapshot(is_needed=not is_listed)  # listed without one: an earlier deletion was interrupted
        except ArchiveError as error:
            if not is_listed or isinstance(error, ForeignTableError):
                raise  # a damaged one that is listed is ours, and goes
        if is_listed:
            catalogue.forget(address.name)
        left = _remove_files(there.objects)
    forget(address)
    return left


def _remove_files(objects: Objects) -> int:
    """Delete what archivers have made of a run, its snapshots first; how many other files there are."""
    there = [one.path for one in objects.listed()]
    tables = {STATE, *(table.name for table in TABLES.values())}
    tables |= {path.partition("/")[0] for path in there if _SEALED.fullmatch(path.partition("/")[2])}
    logs = tuple(sorted({f"{table}/_delta_log/" for table in tables} & {f"{p.rpartition('/')[0]}/" for p in there}))
    own = {path for path in there if path.startswith((*logs, f"{STATE}/")) or _is_sealed(path, tables)}
    is_all = len(own) == len(there)
    for path in (f"{STATE}/_delta_log/", f"{STATE}/", *(("",) if is_all else logs)):
        objects.delete_below(path.rstrip("/"))
    for path in sorted(path for path in own if not path.startswith((*logs, f"{STATE}/")) and not is_all):
        objects.delete(path)
    return len(there) - len(own)


def _is_sealed(path: str, tables: set[str]) -> bool:
    table, _, name = path.partition("/")
    return table in tables and _SEALED.fullmatch(name) is not None
