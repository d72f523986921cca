"""Segment files: checksummed blocks, each holding one Arrow IPC message.

A segment interleaves one Arrow IPC stream per table: a block with the
table's schema message, then blocks with its record batches. Each block has
a header with checksums of itself and of its payload, so damage costs only
the block it hits: a reader skips to the next header and goes on. Blocks are
written in groups, one group per visit of the drainer to a ring; the last
block of a group is marked, and a group is complete or ignored when the
drainer starts again, which makes every row stored exactly once.

A header also says how many rows the process had stored before the block,
so that rows in damaged blocks are counted exactly.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from stethos.native import NATIVE

Bytes = bytes | memoryview
MAGIC = b"STETHBLK"
# magic, header crc, payload crc, payload bytes, table, flags, rows, rows before, slots read, frames read
_HEADER = struct.Struct("<8sIIQHHIQQQ")
HEADER_BYTES = 64
_PADDING = b"\0" * (HEADER_BYTES - _HEADER.size)
_CRC_FROM = 12
_MOST_PIECES = 1024  # that one call may write

FLAG_SCHEMA = 1
FLAG_LAST = 2
FLAG_NAMES = 4


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


_fold = getattr(NATIVE, "fold", None)  # where the processor multiplies without carries
_WORTH_FOLDING = 1024


def checksum(payload: Bytes) -> int:
    """Its CRC-32, of a long one in a fraction of zlib's time."""
    if _fold is None or len(payload) < _WORTH_FOLDING:
        return zlib.crc32(payload)
    return zlib.crc32(_fold(payload), 0xFFFF_FFFF)


def encode_block(
    table: int, flags: int, rows: int, rows_before: int, slots_read: int, frames_read: int, payload: Bytes
) -> tuple[Bytes, Bytes, Bytes]:
    """One block in pieces: its header, the payload itself (copies cost more than all the rest), and padding.

    The next block starts at a multiple of 8 (zero-copy for Arrow at 64).
    """
    rest = struct.pack(
        "<IQHHIQQQ", checksum(payload), len(payload), table, flags, rows, rows_before, slots_read, frames_read
    )
    header = MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest + _PADDING
    return header, payload, b"\0" * (-len(payload) % 8)


def scan(buffer: memoryview) -> Iterator[Block]:
    """Every whole block of a segment, skipping damaged ones."""
    at, size = 0, len(buffer)
    unpack, crc32, header_size = _HEADER.unpack_from, zlib.crc32, _HEADER.size  # a segment has thousands of blocks
    while at + HEADER_BYTES <= size:
        magic, crc, payload_crc, length, table, flags, rows, before, slots, frames = unpack(buffer, at)
        start = at + HEADER_BYTES
        end = start + length
        if magic != MAGIC or end > size or crc32(buffer[at + _CRC_FROM : at + header_size]) != crc:
            at = _next_magic(buffer, at + 8)
            continue
        payload = buffer[start:end]
        at = end + (-length % 8)
        if checksum(payload) == payload_crc:
            yield Block(table, flags, rows, before, slots, frames, payload, at)


def _next_magic(buffer: memoryview, at: int) -> int:
    """The next 8-aligned place that looks like a header, or the end."""
    step = 1 << 20
    while at < len(buffer):
        window = bytes(buffer[at : at + step + 7])
        found = window.find(MAGIC)
        while found >= 0 and (at + found) % 8:
            found = window.find(MAGIC, found + 1)
        if found >= 0:
            return at + found
        at += step
    return len(buffer)


class SegmentWriter:
    """Appends groups of blocks to one segment file.

    After an error (disk full) the file is cut back to the last whole group,
    so the same group can be tried again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self._descriptor).st_size
        self.is_dirty = False

    def truncate(self, size: int) -> None:
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
        """Whether somebody removed the file while it was open."""
        return os.fstat(self._descriptor).st_nlink == 0

    def close(self) -> None:
        os.close(self._descriptor)
