"""Archived runs as directories on this machine: small files at once, Parquet files when a query needs them.

    CACHE/archive/KEY/RUN/                   as the run's own directory was
    CACHE/archive/KEY/RUN/archive.json       where it comes from, and which object is which file

What is kept is bounded: see `cached_files`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stethos.archive.address import Address, parse_address
from stethos.archive.cached_files import Away, cache_root, fetch, keeping, room_for
from stethos.archive.objects import Objects
from stethos.archive.place import ArchivedRun
from stethos.archive.snapshot import Snapshot, written_manifest
from stethos.errors import RunNotFoundError
from stethos.record.border import make_directory, read_json, version_of
from stethos.record.place import MANIFEST_FILE, RUN_FILE, RunPlace, write_facts, write_json
from stethos.record.whole_file import whole_file
from stethos.store.find import ARCHIVE_SOURCE
from stethos.store.sealed import CHECKED_BYTES, SealChecker, Sealed


def directory_of(archive: Address) -> Path:
    """Where the runs of an archive are kept on this machine."""
    return cache_root() / hashlib.sha256(str(archive).encode()).hexdigest()[:16]


def open_archived(address: Address) -> RunPlace:
    """The archived run as a directory of this machine, brought up to date; its rows come when they are asked for."""
    try:
        snapshot = ArchivedRun(address).snapshot()
    except RunNotFoundError:
        forget(address)
        raise
    assert snapshot is not None
    path = directory_of(address.parent) / address.name
    place = RunPlace(path)
    source = read_json(path / ARCHIVE_SOURCE)
    if source.get("sequence") != snapshot.sequence or source.get("identity") != snapshot.identity or not place.exists():
        with keeping(), room_for(len(snapshot.to_json()), {path}):
            _write(path, address, snapshot)
    _touch(path / ARCHIVE_SOURCE)
    return place


def forget(address: Address) -> None:
    """Delete what is kept here of a run that is archived no more."""
    if address.name not in ("", ".", ".."):
        shutil.rmtree(directory_of(address.parent) / address.name, ignore_errors=True)


def _write(path: Path, address: Address, snapshot: Snapshot) -> None:
    """Lay out a snapshot as a run's directory; the times of its files are those of the archive."""
    source, before = _source_of(address, snapshot), read_json(path / ARCHIVE_SOURCE)
    if before.get("identity") != snapshot.identity:  # another run had this name
        shutil.rmtree(path, ignore_errors=True)
        before = {}
    make_directory(path)
    known = before.get("objects")
    # Until all of it is here, what readers of the snapshot before know is true as well.
    objects = {**known, **source["objects"]} if isinstance(known, dict) else source["objects"]
    write_json(path / ARCHIVE_SOURCE, {**source, "objects": objects, "sequence": None})
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
    write_json(path / ARCHIVE_SOURCE, source)


def _source_of(address: Address, snapshot: Snapshot) -> dict[str, Any]:
    """Where a run comes from, and which file of its directory is which object."""
    objects = {f"{file.process}/{file.name}": file.path for file in snapshot.files}
    rounds = {f"{file.process}/{file.name}": file.rounds for file in snapshot.files if file.rounds is not None}
    return {"address": str(address), "sequence": snapshot.sequence, "identity": snapshot.identity, "objects": objects,
            "rounds": rounds}  # fmt: skip


def _touch(path: Path) -> None:
    """Note that a file was used, not that it has changed."""
    with suppress(OSError):  # evicted by another process
        facts = os.stat(path)
        if facts.st_nlink == 1:
            os.utime(path, ns=(time.time_ns(), facts.st_mtime_ns))


class ArchivedSealChecker(SealChecker):
    """Takes listed files for whole until they are needed, and fetches them then."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._version: tuple[int, ...] = ()
        self._address = ""
        self._objects: dict[str, str] = {}
        self._reread()

    @property
    def is_archived(self) -> bool:
        """Whether the directory says which archive it is of."""
        return bool(self._address)

    def _reread(self) -> bool:
        """Read what is where, if that has changed: another process may have brought the directory up to date."""
        version = version_of(self._directory / ARCHIVE_SOURCE)
        if version == self._version:
            return False
        source = read_json(self._directory / ARCHIVE_SOURCE)
        address, objects, rounds = source.get("address"), source.get("objects"), source.get("rounds", {})
        if not isinstance(address, str) or not isinstance(objects, dict):
            return False
        self._version, self._address = version, address
        self._objects = {str(key): str(value) for key, value in objects.items()}
        self.ranges = {self._directory / key: {"round": (int(low), int(high))} for key, (low, high) in rounds.items()}
        return True

    def is_whole(self, file: Sealed, *, deep: bool = False) -> bool:
        return self._is_away(file) or super().is_whole(file, deep=deep)

    def bring(self, files: Iterable[Sealed]) -> None:
        """Fetch those of the files that are not here."""
        wanted = list(files)
        away = [file for file in wanted if self._is_away(file)]
        if away:
            objects = Objects(parse_address(self._address))
            missing = [Away(self._objects[self._key(file)], file.path, file.bytes) for file in away]
            copied = fetch(objects, missing, {file.path for file in wanted})
            # Files of this machine are linked: as in a run's directory, sizes are enough where they are large.
            is_deep = bool(copied) or sum(file.bytes for file in away) <= CHECKED_BYTES
            for file in away:
                super().is_whole(file, deep=is_deep)
        for file in wanted:
            _touch(file.path)
        _touch(self._directory / ARCHIVE_SOURCE)

    def _key(self, file: Sealed) -> str:
        return f"{file.path.parent.name}/{file.path.name}"

    def _is_away(self, file: Sealed) -> bool:
        if version_of(file.path):
            return False
        key = self._key(file)
        return key in self._objects or (self._reread() and key in self._objects)


def checker_of(directory: Path) -> SealChecker:
    """What examines the files of a run's directory: of one in the cache, it fetches them.

    Nothing else is believed to come from an archive, whatever lies in it.
    """
    with suppress(OSError):
        if directory.resolve().parents[1] == cache_root().resolve():
            checker = ArchivedSealChecker(directory)
            if checker.is_archived:
                return checker
    return SealChecker()
