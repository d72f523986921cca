"""Archives one run: uploads what is sealed, then commits it; every step can be repeated, and only whole ones are seen.

Order: Parquet files, the Delta log of each table, the snapshot that names them, the catalogue. Killed anywhere, the
next archiver goes on: an object that is there is not uploaded again, a file that is in a log is not added again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from stethos.archive.address import Address
from stethos.archive.catalogue import Catalogue, catalogue_row
from stethos.archive.delta import DeltaFile, DeltaLog, need_deltalake
from stethos.archive.place import ArchivedRun
from stethos.archive.snapshot import ArchivedFile, Snapshot, local_path, take_snapshot
from stethos.errors import ArchiveError, RunNotFoundError, UsageError
from stethos.record.border import make_directory, open_file, version_of
from stethos.record.place import RunPlace, check_name
from stethos.schema import RECORDED, TABLES
from stethos.settings import registry_dir
from stethos.store.find import ARCHIVE_SOURCE

_UPLOADS = 8
_RANGED = ("round", "step", "t_ns")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What archiving a run did. `is_complete`: the run is over and all of it is archived."""

    run: str
    address: str
    new_files: int
    new_bytes: int
    files: int
    rows: int
    bytes: int
    is_complete: bool


def archive_run(place: RunPlace, archive: Address, tell: Callable[[int, int], None] | None = None) -> Outcome:
    """Bring the archive up to date with a run; `tell` hears how many bytes of how many are there.

    ArchiveError if another archiver is at work, another run of that name is there, or the store fails.
    """
    need_deltalake()
    if not place.exists():
        raise RunNotFoundError(f"no run at {place.path}", hint="list runs with `stethos ls`")
    if version_of(place.path / ARCHIVE_SOURCE):  # the rows that were never asked for are not here
        raise UsageError(
            "a run in an archive is not archived again",
            hint=f"copy its directory to the other archive, then run `stethos archive --to {archive} --compact`",
        )
    name = check_name(str(place.facts().get("run") or place.path.resolve().name))  # somebody else may have made it
    address = archive / name
    check_apart(place, archive)
    with alone(address):
        there = ArchivedRun(address)
        listed = _listed(there, place)
        before = there.snapshot(is_needed=False)
        snapshot = take_snapshot(place, before)
        if before is not None and before.identity != snapshot.identity:
            raise ArchiveError(
                f"another run called {name} is archived at {address}",
                hint="archive to another place, or delete that one with `stethos rm`",
            )
        if before is None:  # claim the name before anything of it is in a log
            before = Snapshot(snapshot.run, snapshot.identity, 1, time.time_ns(), documents=snapshot.documents)
            there.commit(before)
        known = {file.path for file in before.files}
        lost = set() if listed is None else known - listed
        new = [file for file in snapshot.files if file.path not in known or file.path in lost]
        new = _uploaded(there, place.path, new, tell)
        fresh = {file.path: file for file in new}
        snapshot.files = [fresh.get(file.path, file) for file in snapshot.files]
        snapshot.files = [file for file in snapshot.files if file.path in fresh or file.path in known]
        for table in sorted({file.table for file in new} & {table.name for table in RECORDED.values()}):
            log_files(address, table, new, snapshot.files)
        snapshot.sequence, snapshot.archived_ns = before.sequence, before.archived_ns
        if _has_changed(before, snapshot):
            snapshot.sequence, snapshot.archived_ns = before.sequence + 1, time.time_ns()
            there.commit(snapshot)
        catalogue = Catalogue(archive)
        if catalogue.sequence_of(name) != snapshot.sequence:
            catalogue.put(catalogue_row(place, snapshot))
    return Outcome(
        name, str(address), len(new), sum(file.bytes for file in new), len(snapshot.files), snapshot.rows,
        snapshot.bytes, snapshot.is_complete,
    )  # fmt: skip


def _listed(there: ArchivedRun, place: RunPlace) -> set[str] | None:
    """What is there of a run that is over: somebody may have deleted some, as `stethos rm` on another machine does.

    To be asked before the snapshot: what a compaction elsewhere has merged meanwhile is not in that one any more.
    """
    if not all("ended" in process.manifest() for process in place.processes()):
        return None
    return {one.path for one in there.objects.listed()}


def check_apart(place: RunPlace, archive: Address) -> None:
    """UsageError if the archive is where the run was recorded, or inside it: both would have one directory."""
    if not archive.is_local:
        return
    run, directory = place.path.resolve(), Path(archive.path).resolve()
    if directory == run.parent or directory.is_relative_to(run):
        raise UsageError("an archive cannot be where its runs were recorded", hint="choose another directory")


def _uploaded(
    there: ArchivedRun, directory: Path, files: list[ArchivedFile], tell: Callable[[int, int], None] | None
) -> list[ArchivedFile]:
    """Put the files that are not there yet; return those that are now. One that was retired meanwhile is left out."""
    total, done = sum(file.bytes for file in files), 0

    def put(file: ArchivedFile) -> ArchivedFile | None:
        source = local_path(directory, file)
        version = version_of(source)
        if not version or version[1] != file.bytes:
            return None
        try:
            span = rounds_in(source)
            if there.objects.size_of(file.path) != file.bytes:
                there.objects.put_file(file.path, source)
        except FileNotFoundError:
            return None
        return replace(file, rounds=span)

    found: list[ArchivedFile] = []
    with ThreadPoolExecutor(_UPLOADS) as pool:
        for file, one in zip(files, pool.map(put, files), strict=True):
            done += file.bytes
            if one is not None:
                found.append(one)
            if tell is not None:
                tell(done, total)
    return found


def rounds_in(path: Path) -> tuple[int, int] | None:
    """The first and last round in a Parquet file, from its footer."""
    ranges = ranges_in(path)
    return ranges.get("round")


def ranges_in(path: Path) -> dict[str, tuple[int, int]]:
    """Lowest and highest value of the columns by which files are chosen; only those without NULL."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: dict[str, tuple[int, int]] = {}
    try:
        with open(open_file(path, parts=2), "rb") as opened:
            metadata = pq.ParquetFile(opened).metadata
    except pa.ArrowException:
        return found
    places = {metadata.schema.column(index).name: index for index in range(metadata.num_columns)}
    for name in _RANGED:
        if name not in places:
            continue
        groups = [metadata.row_group(index).column(places[name]) for index in range(metadata.num_row_groups)]
        known = [group.statistics for group in groups if group.statistics is not None and group.statistics.has_min_max]
        if known and len(known) == len(groups) and not any(one.null_count for one in known):
            found[name] = min(one.min for one in known), max(one.max for one in known)
    return found


def log_files(address: Address, table: str, new: Iterable[ArchivedFile], every: Iterable[ArchivedFile]) -> None:
    """Add new files to the Delta log of their table; where there is no log, or none any more, add every file of it."""
    from stethos.record.arrow import full_schema

    log = DeltaLog(address / table)
    known = {file.path for file in log.files()}
    added = [delta_file(file) for file in (new if log.exists else every) if file.table == table]
    added = [file for file in added if file.path not in known]
    if added or not log.exists:
        log.commit(added, schema=full_schema(TABLES[table]))


def delta_file(file: ArchivedFile) -> DeltaFile:
    """A file as the Delta log of its table lists it."""
    lowest, highest = ({}, {}) if file.rounds is None else ({"round": file.rounds[0]}, {"round": file.rounds[1]})
    return DeltaFile(file.path.partition("/")[2], file.bytes, file.rows, lowest, highest)


def _has_changed(before: Snapshot, after: Snapshot) -> bool:
    return (before.documents, before.blobs, before.files, before.is_complete) != (
        after.documents, after.blobs, after.files, after.is_complete,
    )  # fmt: skip


@contextmanager
def alone(address: Address) -> Iterator[None]:
    """Keep other archivers of this user on this machine from the same run; those elsewhere are refused by the log."""
    key = hashlib.sha256(str(address).encode()).hexdigest()[:24]
    directory = registry_dir()
    make_directory(directory)
    descriptor = open_file(directory / f"archive-{key}.lock", os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ArchiveError(
                f"another archiver is writing to {address}", hint="let it finish, or stop it; nothing was changed"
            ) from None
        yield
    finally:
        with suppress(OSError):
            os.close(descriptor)
