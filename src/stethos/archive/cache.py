"""Archived runs as directories on this machine: small files at once, Parquet files when a query needs them.

    CACHE/archive/KEY/RUN/                   as the run's own directory was
    CACHE/archive/KEY/RUN/archive.json       where it comes from, and which object is which file

What is kept is bounded; the files that were used longest ago go first.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from stethos.archive.address import Address, parse_address
from stethos.archive.objects import Objects
from stethos.archive.place import ArchivedRun
from stethos.archive.snapshot import Snapshot, written_manifest
from stethos.errors import ArchiveError
from stethos.record.border import make_directory, read_json, version_of
from stethos.record.place import MANIFEST_FILE, RUN_FILE, RunPlace, write_facts, write_json
from stethos.record.whole_file import whole_file
from stethos.settings import cache_bytes, cache_dir
from stethos.store.find import ARCHIVE_SOURCE
from stethos.store.sealed import CHECKED_BYTES, SealChecker, Sealed

FETCHES = 8


def cache_root() -> Path:
    return cache_dir() / "archive"


def directory_of(archive: Address) -> Path:
    """Where the runs of an archive are kept on this machine."""
    return cache_root() / hashlib.sha256(str(archive).encode()).hexdigest()[:16]


def open_archived(address: Address) -> RunPlace:
    """The archived run as a directory of this machine, brought up to date; its rows come when they are asked for."""
    snapshot = ArchivedRun(address).snapshot()
    assert snapshot is not None
    path = directory_of(address.parent) / address.name
    place = RunPlace(path)
    source = read_json(path / ARCHIVE_SOURCE)
    if source.get("sequence") != snapshot.sequence or source.get("identity") != snapshot.identity or not place.exists():
        _write(path, address, snapshot)
    return place


def _write(path: Path, address: Address, snapshot: Snapshot) -> None:
    """Lay out a snapshot as a run's directory; the times of its files are those of the archive."""
    make_directory(path)
    when = (snapshot.archived_ns, snapshot.archived_ns)
    archived = {"address": str(address), "bytes": snapshot.bytes, "archived_ns": snapshot.archived_ns}
    for name, facts in snapshot.documents.items():
        process = name.rpartition("/")[0]
        make_directory(path / process)
        if name.endswith(f"/{MANIFEST_FILE}"):
            facts = written_manifest(snapshot, process)
        elif name == RUN_FILE:
            facts = {**facts, "archived": archived}
        write_facts(path / name, facts)
        os.utime(path / name, ns=when)
    for name, blob in snapshot.blobs.items():
        with whole_file(path / name) as file:
            file.write(blob)
    objects = {f"{file.process}/{file.name}": file.path for file in snapshot.files}
    rounds = {f"{file.process}/{file.name}": file.rounds for file in snapshot.files if file.rounds is not None}
    source = {"address": str(address), "sequence": snapshot.sequence, "identity": snapshot.identity, "objects": objects,
              "rounds": rounds}  # fmt: skip
    write_json(path / ARCHIVE_SOURCE, source)


class ArchivedSealChecker(SealChecker):
    """Takes listed files for whole until they are needed, and fetches them then."""

    def __init__(self, directory: Path, source: dict[str, Any]) -> None:
        super().__init__()
        self._directory = directory
        self._address = str(source["address"])
        self._objects: dict[str, str] = {str(key): str(value) for key, value in source["objects"].items()}
        self.ranges = {
            directory / key: {"round": (int(low), int(high))} for key, (low, high) in source.get("rounds", {}).items()
        }

    def is_whole(self, file: Sealed, *, deep: bool = False) -> bool:
        return self._is_away(file) or super().is_whole(file, deep=deep)

    def bring(self, files: Iterable[Sealed]) -> None:
        """Fetch those of the files that are not here."""
        wanted = list(files)
        away = [file for file in wanted if self._is_away(file)]
        if away:
            objects = Objects(parse_address(self._address))
            if not objects.address.is_local:
                make_room(sum(file.bytes for file in away), {file.path for file in wanted})
            with ThreadPoolExecutor(FETCHES) as pool:
                list(pool.map(lambda file: self._fetch(objects, file), away))
            # Files of this machine are linked: as in a run's directory, sizes are enough where they are large.
            is_deep = not objects.address.is_local or sum(file.bytes for file in away) <= CHECKED_BYTES
            for file in away:
                super().is_whole(file, deep=is_deep)
        now = time.time_ns()
        for file in wanted:
            with suppress(OSError):  # evicted by another process: the query looks again
                if os.stat(file.path).st_nlink == 1:
                    os.utime(file.path, ns=(now, os.stat(file.path).st_mtime_ns))

    def _fetch(self, objects: Objects, file: Sealed) -> None:
        path = self._objects[self._key(file)]
        try:
            objects.fetch(path, file.path)
        except FileNotFoundError:
            raise ArchiveError(
                f"{objects.address}/{path} is missing from the archive",
                hint="if the run was compacted meanwhile, repeat the command",
            ) from None

    def _key(self, file: Sealed) -> str:
        return f"{file.path.parent.name}/{file.path.name}"

    def _is_away(self, file: Sealed) -> bool:
        return not version_of(file.path) and self._key(file) in self._objects


def checker_of(directory: Path) -> SealChecker:
    """What examines the files of a run's directory: of one in the cache, it fetches them.

    Nothing else is believed to come from an archive, whatever lies in it.
    """
    with suppress(OSError):
        if directory.resolve().parents[1] == cache_root().resolve():
            source = read_json(directory / ARCHIVE_SOURCE)
            if isinstance(source.get("address"), str) and isinstance(source.get("objects"), dict):
                return ArchivedSealChecker(directory, source)
    return SealChecker()


def make_room(wanted_bytes: int, kept: set[Path]) -> None:
    """Evict files used longest ago until so much fits; ArchiveError if it never will."""
    most = cache_bytes()
    found: list[tuple[float, int, Path]] = []
    for path in cache_root().glob("*/*/*/*.parquet"):
        with suppress(OSError):
            facts = os.stat(path, follow_symlinks=False)
            if facts.st_nlink == 1:
                found.append((facts.st_atime, facts.st_size, path))
    here = sum(size for _, size, _ in found)
    bound = sum(size for _, size, path in found if path in kept)
    if wanted_bytes + bound > most:
        raise ArchiveError(
            f"{wanted_bytes + bound:,} bytes of archived files are needed, and the cache holds {most:,}",
            hint="set STETHOS_CACHE_BYTES=50GB, or narrow the query by round",
        )
    for _, size, path in sorted(found):
        if here + wanted_bytes <= most:
            return
        if path not in kept:
            path.unlink(missing_ok=True)
            here -= size
