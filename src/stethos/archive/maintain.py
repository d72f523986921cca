"""Looks after an archive: merges small files, deletes runs. Readers see the state before or the one after."""

from __future__ import annotations

import io
import time
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stethos.archive.address import Address
from stethos.archive.catalogue import Catalogue
from stethos.archive.committer import alone, delta_file
from stethos.archive.delta import DeltaFile, DeltaLog
from stethos.archive.objects import Objects
from stethos.archive.place import CATALOGUE, STATE, ArchivedRun
from stethos.archive.snapshot import ArchivedFile
from stethos.errors import ArchiveError, UsageError
from stethos.record.arrow import full_schema, in_schema
from stethos.schema import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

_SMALL_BYTES = 64 << 20  # files below are merged
_MERGED_BYTES = 128 << 20  # until they are about so large
_GROUP_ROWS = 122_880


def compact_run(address: Address) -> tuple[int, int]:
    """Merge the small files of each process and table, in order; return how many files there were and are.

    The rows stay as they are, and so does their order. Files that are merged are deleted once no snapshot names them.
    """
    with alone(address):
        there = ArchivedRun(address)
        snapshot = there.snapshot()
        assert snapshot is not None
        before = len(snapshot.files)
        merged: list[tuple[list[ArchivedFile], ArchivedFile]] = []
        for group in _groups(snapshot.files):
            new = _merged(there.objects, group)
            merged.append((group, new))
        if not merged:
            return before, before
        gone = {file.path for group, _ in merged for file in group}
        for table in {new.table for _, new in merged}:
            _commit(DeltaLog(address / table), table, merged)
        kept = [file for file in snapshot.files if file.path not in gone]
        snapshot.files = sorted([*kept, *(new for _, new in merged)], key=lambda file: file.path)
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
    schema = full_schema(TABLES[first.table])
    content = io.BytesIO()
    rows = 0
    try:
        with pq.ParquetWriter(content, schema, compression="zstd", write_page_checksum=True) as writer:
            for file in group:
                data = objects.read(file.path)
                if file.crc32 is not None and zlib.crc32(data) != file.crc32:
                    raise ArchiveError(f"{objects.address}/{file.path} is damaged: it is not merged")
                part: pa.Table = in_schema(pq.read_table(io.BytesIO(data)), schema)
                rows += part.num_rows
                writer.write_table(part, row_group_size=_GROUP_ROWS)
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


def _commit(log: DeltaLog, table: str, merged: list[tuple[list[ArchivedFile], ArchivedFile]]) -> None:
    listed = {file.path: file for file in log.files()}
    added: list[DeltaFile] = []
    removed: list[DeltaFile] = []
    for group, new in merged:
        if new.table == table:
            added.append(delta_file(new))
            removed += [listed[one.path] for one in map(delta_file, group) if one.path in listed]
    added = [file for file in added if file.path not in listed]
    if added or removed:
        log.commit(added, removed, schema=full_schema(TABLES[table]))


def remove_run(address: Address) -> None:
    """Delete an archived run: first it is listed and found no more, then its files go. Can be repeated."""
    if address.name in ("", CATALOGUE):
        raise UsageError("which run?", hint="name one: stethos rm ADDRESS/RUN")
    with alone(address):
        there = ArchivedRun(address)
        catalogue = Catalogue(address.parent)
        if there.snapshot(is_needed=catalogue.sequence_of(address.name) is None) is None and catalogue.exists:
            pass  # an earlier deletion was interrupted
        if catalogue.sequence_of(address.name) is not None:
            catalogue.forget(address.name)
        there.objects.delete_below(f"{STATE}/_delta_log")
        there.objects.delete_below(STATE)
        there.objects.delete_below("")
