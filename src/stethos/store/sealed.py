"""Sealed Parquet files: whole, damaged or missing, and what can be saved of a damaged one."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.record.border import open_file, version_of
from stethos.schema import Table

if TYPE_CHECKING:
    import pyarrow as pa

# Checksums of a run's files are compared when it is opened, up to this size: some 60 ms.
# Beyond it a query relies on sizes and on what the Parquet reader notices.
CHECKED_BYTES = 256 << 20
_READ_BYTES = 4 << 20
_MOST_ROWS = 10_000_000  # that are saved from one damaged file: a segment of 16 MB holds a tenth of that


@dataclass(frozen=True, slots=True)
class Sealed:
    """One Parquet file as a manifest lists it; `crc32` is None in manifests without it."""

    path: Path
    table: str
    rows: int
    bytes: int
    crc32: int | None = None

    @classmethod
    def listed(cls, directory: Path, entry: dict[str, Any]) -> Sealed:
        return cls(directory / entry["file"], entry["table"], entry["rows"], entry["bytes"], entry.get("crc32"))


@dataclass(slots=True)
class _Verdict:
    version: tuple[int, ...]
    is_whole: bool
    is_deep: bool
    salvaged: pa.Table | None = field(default=None)


class SealChecker:
    """Remembers which files are whole, so that each is examined once per change.

    A shallow look compares sizes; a deep one also compares checksums. `ranges` has what is known of the columns of
    files that must be fetched, by which a query can do without some of them.
    """

    def __init__(self) -> None:
        self.ranges: dict[Path, dict[str, tuple[int, int]]] = {}
        self._verdicts: dict[Path, _Verdict] = {}

    def is_whole(self, file: Sealed, *, deep: bool = False) -> bool:
        version = version_of(file.path)
        known = self._verdicts.get(file.path)
        if known is None or known.version != version or (known.is_whole and deep and not known.is_deep):
            has_size = bool(version) and version[1] == file.bytes
            known = _Verdict(version, has_size and (not deep or has_checksums(file)), deep)
            self._verdicts[file.path] = known
        return known.is_whole

    def bring(self, files: Iterable[Sealed]) -> None:
        """Have these files here before they are read; those of a directory are."""

    def condemn(self, file: Sealed) -> None:
        """From now on take the file for damaged, whatever its checksums say."""
        self._verdicts[file.path] = _Verdict(version_of(file.path), is_whole=False, is_deep=True)

    def readable_rows(self, file: Sealed, table: Table) -> int:
        """Rows a query can get from the file."""
        return file.rows if self.is_whole(file) else self.salvaged(file, table).num_rows

    def salvaged(self, file: Sealed, table: Table) -> pa.Table:
        """What can still be read of a damaged file."""
        self.is_whole(file)
        verdict = self._verdicts[file.path]
        if verdict.salvaged is None:
            verdict.salvaged = salvage(file, table)
        return verdict.salvaged


def has_checksums(file: Sealed) -> bool:
    """Whether the file's content is what was written: by its own checksum, else by those of its pages."""
    try:
        if file.crc32 is not None:
            return _crc32_of(file.path) == file.crc32
    except OSError:
        return False
    groups, is_whole = _whole_groups(file.path, file.rows)
    return is_whole and sum(group.num_rows for group in groups) == file.rows


def salvage(file: Sealed, table: Table) -> pa.Table:
    """The undamaged row groups of a file in the full schema; no rows if there is nothing to save."""
    import pyarrow as pa

    from stethos.record.arrow import full_schema, in_schema

    schema = full_schema(table)
    try:
        groups, _ = _whole_groups(file.path, file.rows)
        saved = pa.concat_tables([schema.empty_table(), *(in_schema(group, schema) for group in groups)])
    except (pa.ArrowException, ValueError):
        return schema.empty_table()
    # The footer has no checksum of its own: believe it only if it tells of what we would have written.
    known = {(field.name, field.type) for field in schema}
    is_known = all((field.name, field.type) in known for group in groups for field in group.schema)
    return saved if is_known and saved.num_rows <= file.rows else schema.empty_table()


def _whole_groups(path: Path, most_rows: int) -> tuple[list[pa.Table], bool]:
    """The row groups whose pages match their checksums, up to a number of rows, and whether those are all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    groups, is_whole = [], True
    try:
        with (
            open(open_file(path, parts=2), "rb") as opened,
            pq.ParquetFile(opened, page_checksum_verification=True) as file,
        ):
            most_rows = min(most_rows, _MOST_ROWS)
            for index in range(file.num_row_groups):
                most_rows -= file.metadata.row_group(index).num_rows
                try:
                    if most_rows < 0:
                        raise ValueError("more rows than were written")
                    groups.append(file.read_row_group(index))
                except (pa.ArrowException, OSError, ValueError):
                    is_whole = False
    except (pa.ArrowException, OSError, ValueError):
        return [], False
    return groups, is_whole


def _crc32_of(path: Path) -> int:
    crc = 0
    with open(open_file(path, parts=2), "rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            crc = zlib.crc32(data, crc)
    return crc
