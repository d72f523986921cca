"""Files of archives that are kept on this machine, up to a number of bytes; those used longest ago go first.

CACHE/archive/KEY/RUN/...          what is kept
CACHE/archive/size                 how much that is at most; it is counted again where it comes near the bound
CACHE/archive/reserved-PID-TIME    as large as what a process is about to fetch; it takes no room on the disk
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from stethos.archive.objects import Objects
from stethos.errors import ArchiveError
from stethos.record.border import make_directory, open_file, read_file
from stethos.record.whole_file import whole_file
from stethos.settings import cache_bytes, cache_dir
from stethos.store.find import ARCHIVE_SOURCE

FETCHES = 8
_SIZE, _LOCK, _RESERVED = "size", "lock", "reserved-"
_STALE_S = 3600.0  # after which a fetch that has not ended was killed
_SPARE = 0.1  # of the bound, which is made free at once: to look for what may go takes time


class Away(NamedTuple):
    """A file that is not here: its object, where it is to be, and its size."""

    object: str
    path: Path
    bytes: int


class _Kept(NamedTuple):
    """Something that may go: first Parquet files, then the directories of runs with their small files."""

    is_run: bool
    used: float
    bytes: int
    path: Path

    def remove(self) -> None:
        if self.is_run:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)


def cache_root() -> Path:
    return cache_dir() / "archive"


def fetch(objects: Objects, away: Sequence[Away], kept: set[Path]) -> Sequence[Away]:
    """Bring these files here; return those that were copied, not linked. What is `kept` is needed besides them.

    ArchiveError if one is missing, or they never fit.
    """

    def link(one: Away) -> bool:
        return objects.address.is_local and objects.link(one.object, one.path)

    def copy(one: Away) -> None:
        try:
            objects.fetch(one.object, one.path)
        except FileNotFoundError:
            raise ArchiveError(
                f"{objects.address}/{one.object} is missing from the archive",
                hint="if the run was compacted or deleted meanwhile, repeat the command",
            ) from None

    with ThreadPoolExecutor(FETCHES) as pool:
        copied = [one for one, is_linked in zip(away, pool.map(link, away), strict=True) if not is_linked]
        if copied:
            with keeping(), room_for(sum(one.bytes for one in copied), kept):
                list(pool.map(copy, copied))
    return copied


@contextmanager
def keeping() -> Iterator[None]:
    """ArchiveError if this machine cannot keep files."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(
            f"archived files cannot be kept in {cache_root()}: {error.strerror or error}",
            hint="make room there, or set XDG_CACHE_HOME to a directory that can be written to",
        ) from None


@contextmanager
def room_for(wanted_bytes: int, kept: set[Path]) -> Iterator[None]:
    """Evict what was used longest ago until so much fits, and keep the room; ArchiveError if it never will.

    What is `kept` stays. Other processes that fetch at the same time count what is about to come.
    """
    root = cache_root()
    make_directory(root)
    reserved = root / f"{_RESERVED}{os.getpid()}-{time.monotonic_ns()}"
    descriptor = -1
    try:
        with _locked(root):
            here = _size_of(root)
            _check_bound(wanted_bytes, kept)
            if here is None or here + wanted_bytes > cache_bytes():
                here = _evicted(root, wanted_bytes, kept)
            with whole_file(root / _SIZE, is_synced=False) as file:
                file.write(str(here + wanted_bytes).encode())
            descriptor = open_file(reserved, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with suppress(OSError):  # not on this file system
                os.truncate(descriptor, wanted_bytes)
        yield
    finally:
        reserved.unlink(missing_ok=True)
        if descriptor >= 0:
            os.close(descriptor)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    lock = open_file(root / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _size_of(root: Path) -> int | None:
    try:
        return int(read_file(root / _SIZE, 100))
    except (OSError, ValueError):
        return None


def _check_bound(wanted_bytes: int, kept: set[Path]) -> None:
    """ArchiveError if what one query needs is more than is ever kept."""
    for path in kept:
        with suppress(OSError):
            facts = path.stat(follow_symlinks=False)
            wanted_bytes += facts.st_size if facts.st_nlink == 1 else 0
    if wanted_bytes > cache_bytes():
        raise ArchiveError(
            f"{wanted_bytes:,} bytes of archived files are needed, and the cache holds {cache_bytes():,}",
            hint="set STETHOS_CACHE_BYTES=50GB, or narrow the query by round",
        )


def _evicted(root: Path, wanted_bytes: int, kept: set[Path]) -> int:
    """Remove what may go until there is room and some to spare; how much is left."""
    found, coming = _contents(root)
    here = coming + sum(one.bytes for one in found)
    needed = kept | {path.parents[1] for path in kept}
    for one in sorted(found):
        if here + wanted_bytes <= (1 - _SPARE) * cache_bytes():
            break
        if one.path not in needed:
            one.remove()
            here -= one.bytes
    if here + wanted_bytes > cache_bytes() and coming:
        raise ArchiveError(
            f"the cache holds {cache_bytes():,} bytes, and others are fetching {coming:,}",
            hint="wait for them, or set STETHOS_CACHE_BYTES=50GB",
        )
    return here


def _contents(root: Path) -> tuple[list[_Kept], int]:
    """What is kept, but for links, which cost nothing; and how much others are about to fetch."""
    found = []
    for run in root.glob("*/*"):
        small, used = 0, 0.0
        for directory, _, names in os.walk(run):
            for name in names:
                path = Path(directory, name)
                with suppress(OSError):  # gone meanwhile
                    facts = path.stat(follow_symlinks=False)
                    if name.startswith(".") and time.time() - facts.st_mtime > _STALE_S:
                        path.unlink()  # of a fetch that was killed
                    elif path.suffix == ".parquet":
                        found += [_Kept(False, facts.st_atime, facts.st_size, path)] if facts.st_nlink == 1 else []
                    else:
                        small += facts.st_size
                        used = max(used, facts.st_atime if name == ARCHIVE_SOURCE else 0.0)
        found.append(_Kept(True, used, small, run))
    return found, sum(map(_coming, root.glob(f"{_RESERVED}*")))


def _coming(reserved: Path) -> int:
    """How much a process is fetching; 0 if it was killed."""
    try:
        descriptor = open_file(reserved)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            reserved.unlink(missing_ok=True)
        except BlockingIOError:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    except OSError:  # it has just ended
        pass
    return 0
