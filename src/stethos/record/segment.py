"""Segment files: checksummed blocks, each holding one Arrow IPC message.

A segment interleaves one Arrow IPC stream per table: a block with the
table's schema message, then blocks with its record batches. Each block has
a header with checksums of itself and of its payload, so damage costs only
the block it hits: a reader skips to the next header and goes on. Blocks are
written in groups, one group per visit of the drainer to a ring; the last
block of a group is marked, and a group is complete or ignored when the
drainer starts again, which makes every row stored exactly once.

A header also says how many rows the process had stored before the block,
so that rows in damaged blocks are counted exactly. A finished segment is
sealed as Parquet: one file per table, rows in order, pages checksummed.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stethos.errors import QueryError
from stethos.record.border import map_file, open_file, sync_directory
from stethos.record.whole_file import whole_file
from stethos.schema import RECORDED, Kind, Table

if TYPE_CHECKING:
    import pyarrow as pa

Bytes = bytes | memoryview
MAGIC = b"STETHBLK"
# magic, header crc, payload crc, payload bytes, table, flags, rows, rows before, slots read, frames read
_HEADER = struct.Struct("<8sIIQHHIQQQ")
HEADER_BYTES = 64
_PADDING = b"\0" * (HEADER_BYTES - _HEADER.size)
_CRC_FROM = 12
_MOST_PIECES = 1024  # that one call may write
GROUP_ROWS = 122_880  # of a Parquet file: what DuckDB reads at once, and a column is read without its neighbours

FLAG_SCHEMA = 1
FLAG_LAST = 2
FLAG_NAMES = 4
FLAG_SAMPLED = 8  # rows of the drainer's own


class Block(NamedTuple):
    """A whole block as found in a file; `payload` is a view into it."""

    table: int
    flags: int
    rows: int
    rows_before: int
    slots_read: int
    frames_read: int
    payload: memoryview
    end: int

    @property
    def is_batch(self) -> bool:
        return not self.flags & (FLAG_SCHEMA | FLAG_NAMES)


def encode_block(
    table: int, flags: int, rows: int, rows_before: int, slots_read: int, frames_read: int, payload: Bytes
) -> tuple[Bytes, Bytes, Bytes]:
    """One block in pieces: its header, the payload itself (copies cost more than all the rest), and padding.

    The next block starts at a multiple of 8 (zero-copy for Arrow at 64).
    """
    rest = struct.pack(
        "<IQHHIQQQ", zlib.crc32(payload), len(payload), table, flags, rows, rows_before, slots_read, frames_read
    )
    header = MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest + _PADDING
    return header, payload, b"\0" * (-len(payload) % 8)


def scan(buffer: memoryview, *, is_sent: bool = False) -> Iterator[Block]:
    """Every whole block of a segment, skipping damaged ones.

    `is_sent`: the bytes are known to be those that their writer made, so nothing behind what is no block is looked for.
    """
    at, size = 0, len(buffer)
    unpack, crc32, header_size = _HEADER.unpack_from, zlib.crc32, _HEADER.size  # a segment has thousands of blocks
    while at + HEADER_BYTES <= size:
        magic, crc, payload_crc, length, table, flags, rows, before, slots, frames = unpack(buffer, at)
        start = at + HEADER_BYTES
        end = start + length
        if magic != MAGIC or end > size or crc32(buffer[at + _CRC_FROM : at + header_size]) != crc:
            if is_sent:
                return
            at = _next_magic(buffer, at + 8)
            continue
        payload = buffer[start:end]
        at = end + (-length % 8)
        if zlib.crc32(payload) == payload_crc:
            yield Block(table, flags, rows, before, slots, frames, payload, at)


def stored_blocks(buffer: memoryview, slots_tail: int, frames_tail: int) -> list[Block]:
    """The blocks of whole groups, and those of a damaged one that the ring, with these tails, has let go of."""
    blocks = list(scan(buffer))
    is_stored = [
        bool(block.flags & FLAG_LAST) or (block.slots_read <= slots_tail and block.frames_read <= frames_tail)
        for block in blocks
    ]
    return blocks[: max((index + 1 for index, stored in enumerate(is_stored) if stored), default=0)]


def _next_magic(buffer: memoryview, at: int) -> int:
    """The next 8-aligned place that looks like a header, or the end."""
    step = 1 << 10
    while at < len(buffer):
        window = bytes(buffer[at : at + step + 7])
        found = window.find(MAGIC)
        while found >= 0 and (at + found) % 8:
            found = window.find(MAGIC, found + 1)
        if found >= 0:
            return at + found
        at += step
        step = min(2 * step, 1 << 20)  # small at first: every second place may look like one
    return len(buffer)


class SegmentWriter:
    """Appends groups of blocks to one segment file.

    After an error (disk full) the file is cut back to the last whole group,
    so the same group can be tried again.
    """

    def __init__(self, path: Path, *, is_synced: bool = True) -> None:
        """Without `is_synced` a power cut can take a new file: where something else has what it holds."""
        self.path = path
        self._descriptor = open_file(path, os.O_RDWR | os.O_CREAT, parts=2)
        self.size = os.fstat(self._descriptor).st_size
        self.is_dirty = False
        if not self.size and is_synced:
            sync_directory(path.parent)

    def truncate(self, size: int) -> None:
        if os.fstat(self._descriptor).st_size != size:  # whose time of change says when rows came
            os.ftruncate(self._descriptor, size)
        self.size = size

    def write_group(self, pieces: Iterable[Bytes]) -> None:
        """Append the blocks, given in pieces, or raise OSError and leave the file as it was."""
        rest = [memoryview(piece) for piece in pieces]
        end = self.size
        try:
            while rest:
                written = os.pwritev(self._descriptor, rest[:_MOST_PIECES], end)
                end += written
                while rest and written >= len(rest[0]):
                    written -= len(rest.pop(0))
                if written:
                    rest[0] = rest[0][written:]
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size = end
        self.is_dirty = True

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        if self.is_dirty:
            os.fdatasync(self._descriptor)
            self.is_dirty = False

    def is_deleted(self) -> bool:
        """Whether somebody removed the file while it was open; not, if that cannot be said now."""
        try:
            return os.fstat(self._descriptor).st_nlink == 0
        except OSError:
            return False

    def close(self) -> None:
        os.close(self._descriptor)


# Rows of a segment, and Parquet ---------------------------------------------------------------------------


class SegmentRows:
    """The whole blocks of one segment; rows missing before or between them are `lost`.

    `rows_before` is how many rows its process had stored when the segment began; with the `tails` of its ring, blocks
    of a group that was not finished are left out, since the ring still holds their rows. Counting needs the
    standard library only; `arrow` imports pyarrow.
    """

    def __init__(self, rows_before: int, data: Bytes = b"", tails: tuple[int, int] | None = None) -> None:
        self.rows_by_table: dict[int, int] = defaultdict(int)
        self.lost = 0
        self.end_rows = rows_before
        self.slots_read = self.frames_read = self.sampled_rows = 0
        self._names: list[Block] = []
        self._schemas: dict[int, Block] = {}
        self._batches: dict[int, list[Block]] = defaultdict(list)
        view = memoryview(data)
        for block in scan(view) if tails is None else stored_blocks(view, *tails):
            self._take(block)

    def _take(self, block: Block) -> None:
        if block.flags & FLAG_SCHEMA:
            self._schemas[block.table] = block
        if block.flags & FLAG_NAMES:
            self._names.append(block)
        self.lost += max(block.rows_before - self.end_rows, 0)
        if block.is_batch and block.table in RECORDED:
            self._batches[block.table].append(block)
            self.rows_by_table[block.table] += block.rows
            self.sampled_rows += block.rows if block.flags & FLAG_SAMPLED else 0
        self.end_rows = block.rows_before + block.rows
        self.slots_read = max(self.slots_read, block.slots_read)
        self.frames_read = max(self.frames_read, block.frames_read)

    @property
    def rows(self) -> int:
        return sum(self.rows_by_table.values())

    def names(self) -> dict[int, str]:
        """The names that were defined in it, by number."""
        found: dict[int, str] = {}
        for block in self._names:
            first, names = json.loads(bytes(block.payload))
            found |= {int(first) + index: str(name) for index, name in enumerate(names) if name is not None}
        return found

    def arrow(self, table: Table, process: str, rank: int | None) -> pa.Table:
        """One table's rows in the full schema, with the process's columns added.

        QueryError if a block holds what we cannot have written.
        """
        import pyarrow as pa

        from stethos.record.arrow import checked_batch, checked_schema, segment_schema

        written = self._schemas.get(table.number)
        try:
            schema = checked_schema(written.payload) if written else segment_schema(table)
            batches = [checked_batch(block.payload, schema, block.rows) for block in self._batches[table.number]]
            return with_process(pa.Table.from_batches(batches, schema), table, process, rank)
        except (pa.ArrowException, OSError, ValueError, EOFError) as error:
            raise QueryError(
                f"a segment of {process} cannot be read: {error}", hint="it was not written by Stethos"
            ) from None


def with_process(rows: pa.Table, table: Table, process: str, rank: int | None) -> pa.Table:
    """Rows as a process writes them, in the full schema."""
    from stethos.record.arrow import constant_array, full_schema, in_schema

    own = {
        "process": constant_array(process, rows.num_rows, Kind.NAME),
        "rank": constant_array(rank, rows.num_rows, Kind.I32),
    }
    return in_schema(rows, full_schema(table), own)


def concatenated(parts: Sequence[pa.Table]) -> pa.Table | None:
    """Tables one after the other; None if there are none."""
    if not parts:
        return None
    import pyarrow as pa

    return pa.concat_tables(parts)


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
    rows = SegmentRows(rows_before, map_file(segment, parts=2))
    sealed: list[SealedFile] = []
    for table_number in sorted(rows.rows_by_table):
        table = RECORDED[table_number]
        path = directory / f"{number:06d}.{table.name}.parquet"
        content = rows.arrow(table, process, rank)
        write_parquet(content, path, table)
        data = map_file(path, parts=2)
        sealed.append(SealedFile(path.name, table.name, content.num_rows, len(data), zlib.crc32(data)))
    return sealed, rows.lost + max(0, rows_after - rows.end_rows)


def parquet_options(table: Table) -> dict[str, Any]:
    """How the columns of a table are packed, for pyarrow's writers."""
    names = [column.name for column in table.all_columns if column.kind is Kind.NAME]
    numbers = [column.name for column in table.all_columns if column.kind is Kind.F64]
    return {"compression": "zstd", "compression_level": 1, "use_dictionary": names, "use_byte_stream_split": numbers,
            "write_page_checksum": True}  # fmt: skip


def write_parquet(content: pa.Table, path: Path, table: Table) -> None:
    """Write a file under a temporary name, sync it, then give it its name."""
    import pyarrow.parquet as pq

    with whole_file(path, is_sole=True) as file:
        pq.write_table(content, file, row_group_size=GROUP_ROWS, **parquet_options(table))
