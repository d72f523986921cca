"""Writes captured states from a thread of its own, whole rounds at a time, and keeps the size limit.

The training thread copies what it captures and goes on. What is waiting is
bounded in bytes: what does not fit is dropped and counted, never waited for.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stethos.errors import CaptureError
from stethos.guard import Guard
from stethos.record.border import open_file
from stethos.record.place import write_json
from stethos.record.whole_file import whole_file
from stethos.redact import redact
from stethos.replay.codec import bases_of
from stethos.replay.place import CapturePlace, map_file, read_table
from stethos.replay.tensorfile import Buffer

WAITING_BYTES = 512 << 20
_FLUSH_BYTES = 8 << 20
_MOST_RANGES = 1000


@dataclass(eq=False, slots=True)
class Piece:
    """One state on its way to disk: `parts` are its objects once it is there, `missing` is why it is not."""

    files: list[Buffer] = field(default_factory=list)
    make: Callable[[], list[Buffer]] | None = None  # where they are made by the writer, of things that stay as they are
    parts: list[str] = field(default_factory=list)
    missing: str = ""

    @property
    def bytes(self) -> int:
        return sum(len(file) for file in self.files)

    def to_json(self) -> dict[str, Any]:
        return {"missing": self.missing} if self.missing else {"parts": self.parts}


@dataclass(frozen=True, slots=True)
class Draft:
    """A round that has ended: its manifest, with pieces in it, and those pieces that it shall not keep."""

    number: int
    manifest: dict[str, Any]
    unwanted: tuple[Piece, ...] = ()


class Writer:
    """The thread, and the queue before it."""

    def __init__(self, place: CapturePlace, limit_bytes: int, waiting_bytes: int = WAITING_BYTES) -> None:
        self._place = place
        self._limit_bytes = limit_bytes
        self._waiting_limit = waiting_bytes
        self._queue: deque[Piece | Draft] = deque()
        self._waiting = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._is_closing = False
        self._known: set[str] = set()
        self._fresh: set[str] = set()
        self._size = 0
        self._bases: dict[str, tuple[str, ...]] = {}
        self._guard = Guard()
        self.dropped: Counter[str] = Counter()
        self._dropped_rounds: list[list[Any]] = []
        self._thread = threading.Thread(target=self._serve, name="stethos-capture", daemon=True)
        self._thread.start()

    # On the training thread -------------------------------------------------------------------------

    def put(self, piece: Piece) -> bool:
        """Take a state along; False if too much is waiting: then it is dropped and counted. Never blocks."""
        size = piece.bytes
        with self._lock:
            is_full = self._waiting > 0 and self._waiting + size > self._waiting_limit
            if not is_full:
                self._waiting += size
                self._queue.append(piece)
                self._idle.clear()
        if is_full:
            piece.files = []
            self.note_missing(piece, "too much was waiting to be written")
            return False
        if self._waiting > _FLUSH_BYTES:
            self._wake.set()
        return True

    def note_missing(self, piece: Piece, reason: str) -> None:
        piece.missing = reason
        self.dropped[reason] += 1

    def end_round(self, draft: Draft) -> None:
        with self._lock:
            self._queue.append(draft)
            self._idle.clear()
        self._wake.set()

    def has_room(self, size: int) -> bool:
        """Whether a state of this size would be taken: asked before it is copied."""
        return self._waiting == 0 or self._waiting + size <= self._waiting_limit

    def close(self, timeout_s: float) -> bool:
        """Write what is waiting; False if that takes longer. No round follows."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything so far is on disk."""
        self._wake.set()
        return self._idle.wait(timeout_s)

    # On our own -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not (self._is_closing and not self._queue):
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                one = self._queue[0]
                self._guard.run("capture", self._write, one)
                with self._lock:
                    self._queue.popleft()
                    if not self._queue:
                        self._idle.set()
        self._guard.run("capture end", self._finish)

    def _write(self, one: Piece | Draft) -> None:
        if isinstance(one, Draft):
            self._end_round(one)
            return
        size = one.bytes
        try:
            one.parts = [self._store(file) for file in (one.make() if one.make is not None else one.files)]
        except OSError as error:
            self.note_missing(one, f"it could not be written: {error.strerror}")
        finally:
            one.files, one.make = [], None
            with self._lock:
                self._waiting -= size

    def _store(self, file: Buffer) -> str:
        """Write an object unless it is there."""
        digest = hashlib.sha256(file.data).hexdigest()
        if digest in self._known or digest in self._fresh:
            self._fresh.add(digest)
            return digest
        path = self._place.raw(digest)
        descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            with open(descriptor, "wb", buffering=0) as target:
                view = file.data
                while view:
                    view = view[target.write(view) :]
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._fresh.add(digest)
        self._size += len(file)
        return digest

    def _end_round(self, draft: Draft) -> None:
        wanted: set[str] = set()
        manifest = _without_secrets(draft.manifest)
        text = json.dumps(manifest, default=functools.partial(_plain, wanted), ensure_ascii=False)
        unwanted = {part for piece in draft.unwanted for part in piece.parts} - wanted - self._known
        self._remove(unwanted)
        try:
            with whole_file(self._place.round_file(draft.number), is_synced=False) as file:  # its digests show damage
                file.write(text.encode())
        except OSError as error:
            self._remove((wanted & self._fresh) - self._known)
            self._fresh = set()
            self._note_round(draft.number, f"it could not be written: {error.strerror}")
            return
        self._known, self._fresh = wanted, set()
        self._keep_limit()
        if self.dropped:
            self._write_dropped()

    # The size limit -----------------------------------------------------------------------------------

    def _keep_limit(self) -> None:
        """Drop the oldest rounds while all objects together are too large."""
        if self._size <= self._limit_bytes:
            return
        sizes = self._sizes()
        self._size = sum(sizes.values())
        rounds = self._place.rounds()
        while self._size > self._limit_bytes and rounds:
            number = rounds.pop(0)
            self._drop(number, rounds, sizes)
            reason = "to stay within capture_bytes" if rounds else "one round is larger than capture_bytes"
            self._note_round(number, reason)

    def _sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in os.scandir(self._place.objects):
            digest = entry.name.partition(".")[0]
            try:
                found[digest] = found.get(digest, 0) + entry.stat().st_size
            except OSError:
                continue  # packed meanwhile
        return found

    def _drop(self, number: int, kept: list[int], sizes: dict[str, int]) -> None:
        """Remove a round: first what names its objects, then those that nobody else needs."""
        path = self._place.round_file(number)
        mine = self._digests(path)
        path.unlink(missing_ok=True)
        needed = set().union(*(self._digests(self._place.round_file(other)) for other in kept))
        self._add_bases(needed)
        gone = mine - needed
        self._remove(gone)
        self._known -= gone
        self._size -= sum(sizes.get(digest, 0) for digest in gone)

    def _digests(self, path: Path) -> set[str]:
        try:
            return digests_in(read_table(path))
        except (OSError, CaptureError):
            return set()

    def _add_bases(self, digests: set[str]) -> None:
        """What these were predicted from, and so on."""
        todo = list(digests)
        while todo:
            digest = todo.pop()
            if digest not in self._bases:
                try:
                    self._bases[digest] = bases_of(map_file(self._place.packed(digest)))
                except (OSError, CaptureError):
                    continue  # not packed yet
            fresh = set(self._bases[digest]) - digests
            digests |= fresh
            todo += fresh

    def _remove(self, digests: set[str]) -> None:
        for digest in digests:
            for path in (self._place.raw(digest), self._place.packed(digest)):
                path.unlink(missing_ok=True)

    def _note_round(self, number: int, reason: str) -> None:
        last = self._dropped_rounds[-1] if self._dropped_rounds else None
        if last is not None and last[2] == reason and last[1] == number - 1:
            last[1] = number
        elif len(self._dropped_rounds) < _MOST_RANGES:
            self._dropped_rounds.append([number, number, reason])
        self._write_dropped()

    def _write_dropped(self) -> None:
        table = {"rounds": self._dropped_rounds, "states": dict(self.dropped)}
        self._guard.run("dropped", write_json, self._place.dropped, table)

    def _finish(self) -> None:
        if self.dropped or self._dropped_rounds:
            self._write_dropped()
        write_json(self._place.finished, {})


def _without_secrets(value: Any) -> Any:
    """Clients, metrics and all that the program has words for are called as in the tables, with secrets masked."""
    if isinstance(value, dict):
        return {
            redact(str(key)): each if key == "parts" else _without_secrets(each)  # digests of objects
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(each) for each in value]
    return redact(value) if isinstance(value, str) else value


def digests_in(manifest: Any) -> set[str]:
    """The objects that a round consists of."""
    if isinstance(manifest, dict):
        own = manifest.get("parts")
        found = {part for part in own if isinstance(part, str)} if isinstance(own, list) else set()
        return found.union(*(digests_in(value) for value in manifest.values() if isinstance(value, dict | list)))
    if isinstance(manifest, list):
        return set().union(*(digests_in(value) for value in manifest if isinstance(value, dict | list)))
    return set()


def _plain(digests: set[str], value: Any) -> Any:
    """What JSON has no words for; the objects that it meets are added to `digests`."""
    if isinstance(value, Piece):
        digests.update(value.parts)
        return value.to_json()
    if callable(value):
        return _without_secrets(value())
    return value.item() if hasattr(value, "item") else redact(str(value))
