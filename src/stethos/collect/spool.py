"""What waits to be sent: batches of one process in files, bounded, and gone only when acknowledged or dropped.

Three lanes, one file set each: lane 0 holds `client_reports` and is never dropped, lane 1 other tables, lane 2 the
bulk ones. When the spool is full, the oldest files of lane 2 go first, then those of lane 1; their rows are counted.
The state is replaced as a whole after each write, and what stands behind it is cut off, so a killed drainer neither
loses a batch nor writes one twice. Standard library only: a federated client reads batches from here for its reply.
"""

from __future__ import annotations

import copy
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stethos.collect.batch import LANES
from stethos.collect.books import NOT_TAKEN, SPOOL_FULL
from stethos.record.border import checked_books, directories_in, make_directory, open_file, read_file, read_json
from stethos.record.place import write_json

STATE_FILE, ACKS_FILE = "state.json", "acks.json"
POLICY = "policy"  # in `kept`: the stamp of the policy that let through what waits
SPOOL_BYTES = 64 << 20
FILE_BYTES = 1 << 20
_ENTRY = struct.Struct("<IIQI")  # bytes, checksum, number, rows
_MOST_FILE_BYTES = 64 << 20
_COUNT = range(2**62)


@dataclass(frozen=True, slots=True)
class SpoolEntry:
    """One batch in the spool."""

    lane: int
    number: int
    rows: int
    data: bytes


@dataclass(slots=True)
class SpoolFile:
    """A file of a lane: its batches are numbered `first` to `last`."""

    first: int
    last: int
    bytes: int
    rows: int


@dataclass(slots=True)
class Spool:
    """The spool of one process; written by its drainer alone."""

    path: Path
    epoch: str = ""
    source: tuple[int, int] = (1, 0)  # segment, and bytes of it, that have been taken
    next_numbers: list[int] = field(default_factory=lambda: [1 for _ in LANES])
    acked: list[int] = field(default_factory=lambda: [0 for _ in LANES])  # all up to this number
    files: list[list[SpoolFile]] = field(default_factory=lambda: [[] for _ in LANES])
    dropped_rows: int = 0  # for want of room
    refused_rows: int = 0
    kept: dict[str, Any] = field(default_factory=dict)  # of the owner: its books and what it has told
    attempted: list[int] = field(default_factory=lambda: [0 for _ in LANES])  # sent, perhaps, and so not to be dropped

    @classmethod
    def load(cls, path: Path) -> Spool:
        """The spool in a directory, made if there is none; what a killed drainer had begun is cut off."""
        make_directory(path)
        spool = cls(path)
        try:
            spool._go_on_from(read_json(path / STATE_FILE, is_needed=True))
        except (KeyError, TypeError, ValueError, IndexError):  # there is none, or not one that we have written
            spool = cls(path, os.urandom(8).hex())
            spool.save()
        spool._tidy()
        return spool

    def _go_on_from(self, state: Mapping[str, Any]) -> None:
        if state["version"] != 1:
            raise ValueError("of another version")
        self.epoch, self.source = str(state["epoch"]), (int(state["source"][0]), int(state["source"][1]))
        self.next_numbers, self.acked, self.attempted = (
            [int(state[name][lane]) for lane in LANES] for name in ("next", "acked", "attempted")
        )
        self.files = [[SpoolFile(*map(int, one)) for one in state["files"][lane]] for lane in LANES]
        self.dropped_rows, self.kept = int(state["dropped_rows"]), dict(state["kept"])
        self.refused_rows = int(state.get("refused_rows", 0))

    @property
    def size_bytes(self) -> int:
        return sum(file.bytes for lane in self.files for file in lane)

    @property
    def waiting_rows(self) -> int:
        return sum(file.rows for lane in self.files for file in lane)

    @property
    def drops(self) -> dict[str, int]:
        """Rows that were in here and are stored nowhere else, by reason."""
        reasons = {SPOOL_FULL: self.dropped_rows, NOT_TAKEN: self.refused_rows}
        return {reason: rows for reason, rows in reasons.items() if rows}

    @property
    def is_empty(self) -> bool:
        return not any(self.files)

    # Writing ----------------------------------------------------------------------------------------

    def append(self, lane: int, number: int, rows: int, data: bytes, *, is_synced: bool = False) -> None:
        """Add a batch behind the others of its lane; it is there once `save` has returned."""
        files = self.files[lane]
        if not files or files[-1].bytes >= FILE_BYTES:
            files.append(SpoolFile(number, number - 1, 0, 0))
        file = files[-1]
        descriptor = open_file(self._file(lane, file.first), os.O_WRONLY | os.O_CREAT)
        try:
            entry = _ENTRY.pack(len(data), _checksum(number, rows, data), number, rows) + data
            view, at = memoryview(entry), file.bytes
            while view:
                written = os.pwrite(descriptor, view, at)
                view, at = view[written:], at + written
            if is_synced:
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        file.bytes, file.last, file.rows = at, number, file.rows + rows
        self.next_numbers[lane] = number + 1

    def save(self) -> None:
        """Make what was appended part of the spool."""
        files = [[[one.first, one.last, one.bytes, one.rows] for one in lane] for lane in self.files]
        write_json(
            self.path / STATE_FILE,
            {
                "version": 1, "epoch": self.epoch, "source": list(self.source), "next": self.next_numbers,
                "acked": self.acked, "files": files, "dropped_rows": self.dropped_rows, "kept": self.kept,
                "attempted": self.attempted, "refused_rows": self.refused_rows,
            },
        )  # fmt: skip

    def make_room(self, over_bytes: int, lane: int) -> int:
        """Drop the oldest files of a lane until so many bytes are free; the bytes that went. They are counted first."""
        freed, gone = 0, []
        for file in [file for file in self.files[lane] if file.first > self.attempted[lane]]:
            if freed >= over_bytes:
                break
            self.files[lane].remove(file)
            freed += file.bytes
            self.dropped_rows += file.rows
            gone.append(self._file(lane, file.first))
        if gone:
            self.save()
        for path in gone:
            path.unlink(missing_ok=True)
        return freed

    def withdraw(self) -> int:
        """Let nothing leave that waits; the rows of it that have not been sent before.

        Rows that were sent, perhaps, and not acknowledged may be stored elsewhere: they are in no count of this end.
        """
        rows = 0
        for lane in LANES:
            gone, self.files[lane] = self.files[lane], []
            for file in gone:
                unsent = [one for one in _entries_of(self._file(lane, file.first), lane, file.bytes, self.acked[lane])
                          if one.number > self.attempted[lane]]  # fmt: skip
                rows += sum(one.rows for one in unsent)
                self._file(lane, file.first).unlink(missing_ok=True)
            self.acked[lane] = self.attempted[lane] = self.next_numbers[lane] - 1
        return rows

    def remembered(self) -> dict[str, Any]:
        """What `go_back_to` needs after a write that failed."""
        return {
            "source": self.source, "next_numbers": list(self.next_numbers), "kept": copy.deepcopy(self.kept),
            "files": [[replace(file) for file in lane] for lane in self.files], "dropped_rows": self.dropped_rows,
        }  # fmt: skip

    def go_back_to(self, remembered: Mapping[str, Any]) -> None:
        """As it was; what was written behind that is overwritten by the next batch."""
        for name, value in remembered.items():
            setattr(self, name, value)

    def acknowledge(self, acked: Mapping[int, int]) -> bool:
        """All batches of a lane up to a number are stored elsewhere: let their files go. Whether that is news."""
        is_news = False
        for lane, number in acked.items():
            if lane in LANES and self.acked[lane] < number < self.next_numbers[lane]:
                self.acked[lane] = number
                is_news = True
                while self.files[lane] and self.files[lane][0].last <= number:
                    self._file(lane, self.files[lane].pop(0).first).unlink(missing_ok=True)
        return is_news

    def take_told_acks(self) -> bool:
        """Acknowledgements that a reply brought, which the training process has written down."""
        return self.acknowledge(told_acks(self.path, self.epoch))

    # Reading ----------------------------------------------------------------------------------------

    def entries(self, lane: int, beyond: int) -> Iterator[SpoolEntry]:
        """The batches of a lane with numbers beyond one, in order; damaged ones are left out."""
        for file in list(self.files[lane]):
            if file.last > beyond:
                yield from _entries_of(self._file(lane, file.first), lane, file.bytes, beyond)

    def _file(self, lane: int, first: int) -> Path:
        return self.path / f"{lane}-{first:09d}.spool"

    def _tidy(self) -> None:
        known = {self._file(lane, file.first).name for lane in LANES for file in self.files[lane]}
        for path in self.path.glob("*.spool"):
            if path.name not in known:
                path.unlink(missing_ok=True)


def _entries_of(path: Path, lane: int, size: int, beyond: int) -> Iterator[SpoolEntry]:
    try:
        content = read_file(path, _MOST_FILE_BYTES)[:size]
    except OSError:
        return
    at = 0
    while at + _ENTRY.size <= len(content):
        length, checksum, number, rows = _ENTRY.unpack_from(content, at)
        data = content[at + _ENTRY.size : at + _ENTRY.size + length]
        at += _ENTRY.size + length
        if len(data) == length and number > beyond and _checksum(number, rows, data) == checksum:
            yield SpoolEntry(lane, number, rows, data)


def _checksum(number: int, rows: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(b"%d %d" % (number, rows)))


def spools_in(directory: Path) -> list[Path]:
    """The spools of a site: one for each process that has something to send, or has had."""
    return [path for run in directories_in(directory) for path in directories_in(run) if (path / STATE_FILE).exists()]


# Beside the drainer: a federated client's reply --------------------------------------------------------


def told_acks(path: Path, epoch: str) -> dict[int, int]:
    """What a reply's acknowledgement says of this spool: the last number of each lane."""
    told = read_json(path / ACKS_FILE).get(epoch)
    if not isinstance(told, dict):
        return {}
    return {
        int(lane): number
        for lane, number in told.items()
        if lane in ("0", "1", "2") and type(number) is int and number in _COUNT
    }


def peek(directory: Path, most_bytes: int, stamp: Any = None) -> list[bytes]:
    """Batches that wait in the spools of a site, the most important first, as many as fit; nothing is changed.

    With the stamp of a policy only those that were let through by just that one.
    """
    found: list[bytes] = []
    spools = [read_spool(path) for path in spools_in(directory)]
    spools = [one for one in spools if stamp is None or one.kept.get(POLICY, stamp) == stamp]
    for lane in LANES:
        for spool in spools:
            beyond = max(spool.acked[lane], told_acks(spool.path, spool.epoch).get(lane, 0))
            for entry in spool.entries(lane, beyond):
                if len(entry.data) > most_bytes:
                    break  # in order: those behind it wait, too
                found.append(entry.data)
                most_bytes -= len(entry.data)
    return found


def read_spool(path: Path) -> Spool:
    """A spool as its state says, for reading alone; an empty one where the state is damaged."""
    spool, state = Spool(path), read_json(path / STATE_FILE)
    try:
        spool.epoch, spool.acked = str(state["epoch"]), [int(number) for number in state["acked"]]
        spool.files = [[SpoolFile(*map(int, one)) for one in lane] for lane in state["files"]]
        spool.dropped_rows, spool.kept = int(state["dropped_rows"]), dict(state["kept"])
        spool.refused_rows = int(state.get("refused_rows", 0))
    except (KeyError, TypeError, ValueError):
        return Spool(path)
    return spool


def books_of(spool: Spool) -> dict[str, Any]:
    """The client's books as they stand with its spool."""
    return checked_books(spool.kept.get("books"))
