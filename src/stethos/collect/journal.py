"""The collector's journal: a batch is acknowledged when it stands here and the disk has it.

Batches of many clients go into one file and share one sync; from here they are written into the runs. A file goes when
everything in it has reached the runs' own files. After a crash the journal is read again, and batches that a run has
already are left out.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from stethos.record.border import make_directory, open_file, read_file, sync_directory

ROLL_BYTES = 32 << 20
_LARGEST = 1 << 30
_ENTRY = struct.Struct("<II")  # bytes, checksum


class Journal:
    """Files `N.journal` in a directory; one process writes them."""

    def __init__(self, directory: Path) -> None:
        make_directory(directory)
        self.directory = directory
        found = self.files()
        self._number = int(found[-1].stem) if found else 0
        self._descriptor: int | None = None
        self._size = 0

    def files(self) -> list[Path]:
        return sorted(path for path in self.directory.glob("*.journal") if path.stem.isdigit())

    @property
    def current(self) -> Path:
        return self._path(self._number)

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:09d}.journal"

    @property
    def wants_roll(self) -> bool:
        return self._size >= ROLL_BYTES

    def commit(self, batches: Sequence[bytes]) -> None:
        """Append batches and sync; OSError, with nothing changed, if the disk does not take them."""
        if self._descriptor is None:
            self.roll()
        assert self._descriptor is not None
        pieces = b"".join(_ENTRY.pack(len(one), zlib.crc32(one)) + one for one in batches)
        view, at = memoryview(pieces), self._size
        try:
            while view:
                written = os.pwrite(self._descriptor, view, at)
                view, at = view[written:], at + written
            os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size = at

    def roll(self) -> Path | None:
        """Begin a new file; the one before, which may go when its batches have reached their runs.

        OSError, with nothing changed, if no file can be made.
        """
        following = open_file(self._path(self._number + 1), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        before = self.current if self._descriptor is not None else None
        self.close()
        self._number += 1
        self._descriptor, self._size = following, 0
        sync_directory(self.directory)
        return before

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def batches_in(path: Path) -> Iterator[bytes]:
    """The whole batches of a file; it ends at the first that is not."""
    content, at = read_file(path, _LARGEST), 0
    while at + _ENTRY.size <= len(content):
        size, checksum = _ENTRY.unpack_from(content, at)
        batch = content[at + _ENTRY.size : at + _ENTRY.size + size]
        at += _ENTRY.size + size
        if len(batch) != size or zlib.crc32(batch) != checksum:
            return
        yield batch
