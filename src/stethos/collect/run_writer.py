"""Writes batches that the journal has into run directories, from one thread.

The journal has promised them, so nobody waits for this thread. It appends rows as they come; manifests, which cost a
new file each, get a tenth of its time, and a file of the journal goes when everything before it is saved and synced.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import queue
import resource
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from stethos.collect.aliases import OwnNames
from stethos.collect.batch import BatchHeader, Key, SignedBatch
from stethos.collect.journal import Journal
from stethos.collect.stored_process import StoredProcess
from stethos.errors import RecordingError
from stethos.guard import Guard, tried
from stethos.record.border import is_gone, sync_file_system

FEWEST_OPEN, MOST_OPEN, MOST_KNOWN = 100, 12_000, 20_000  # processes whose segment is open, and all in memory
SAVE_S, SAVE_SHARE = 2.0, 0.1
_FILES_OF_OTHERS = 4_000  # connections and the dashboard's
_RETRY_S = 1.0
_NICE = 15  # the server itself has 5
_FREEZE_EVERY = 1000
_OF_ONE_PLACE = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM,
})  # fmt: skip
_logger = logging.getLogger("stethos")


class _Unsaved(NamedTuple):
    process: StoredProcess
    since: int  # how many batches had been written


class RunWriter:
    """Writes batches in the order in which they came."""

    def __init__(self, directory: Path, set_aside: Journal) -> None:
        """`set_aside` takes batches whose place in a run cannot be written, until the collector starts again."""
        self._directory = directory
        self.set_aside = set_aside
        self._broken: set[Key] = set()
        self._known: OrderedDict[Key, StoredProcess] = OrderedDict()
        self._open: OrderedDict[Key, StoredProcess] = OrderedDict()
        self._most_open = max(FEWEST_OPEN, _allowed_files(MOST_OPEN + _FILES_OF_OTHERS) - _FILES_OF_OTHERS)
        self._unsaved: dict[Key, _Unsaved] = {}  # the oldest first
        self._journals: deque[tuple[Path, int]] = deque()  # and how many batches had been written at its end
        self._queue: queue.SimpleQueue[tuple[SignedBatch, OwnNames] | Path | None] = queue.SimpleQueue()
        self._guard = Guard()
        self._is_closing = False
        self._written = 0
        self.waiting_bytes = 0
        self.rows = 0
        self._thread = threading.Thread(target=self._work, name="stethos-runs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, batch: SignedBatch, names: OwnNames) -> None:
        self.waiting_bytes += len(batch.data)
        self._queue.put((batch, names))

    def put_marker(self, journal: Path | None) -> None:
        """When everything before this is on disk, that file of the journal may go."""
        if journal is not None:
            self._queue.put(journal)

    def close(self) -> bool:
        """Stop when everything is written; whether it was."""
        self._is_closing = True
        self._queue.put(None)
        self._thread.join(30)
        return not self._thread.is_alive()

    def write(self, batch: SignedBatch, names: OwnNames) -> None:
        """Put a batch into its run; of one that holds nothing readable its rows are counted."""
        process = self._process(batch.header)
        self.rows += process.store(batch, names)
        self._written += 1
        self._unsaved.setdefault(batch.header.key, _Unsaved(process, self._written))

    def write_or_set_aside(self, batch: SignedBatch, names: OwnNames) -> None:
        """Put a batch into its run, or aside where just this place cannot be written: others are not held up.

        So is a batch aside that makes us fail. OSError where it is the disk.
        """
        key = batch.header.key
        if key not in self._broken:
            _, error = tried(self.write, batch, names)
            if error is None:
                return
            cause = _of_one_place(error)
            if cause is not None:
                self._broken.add(key)
            elif isinstance(error, OSError | RecordingError):
                raise error
            elif key in self._known:  # what it has in memory may be half of the batch
                self._forget(key)
            said = "rows of client %s cannot be written into run %s (%s); they wait in %s"
            reason = cause.strerror if cause is not None else repr(error)[:200]
            _logger.warning(said, key[1], key[0], reason, self.set_aside.directory)
        self.set_aside.commit([batch.data])

    def save(self, most_s: float = float("inf")) -> None:
        """Bring manifests up to date, those first that have waited longest, for about that long."""
        until = time.monotonic() + most_s
        while self._unsaved and time.monotonic() < until:
            key = next(iter(self._unsaved))
            entry = self._unsaved.pop(key)
            try:
                entry.process.save()
            except OSError as error:
                if is_gone(entry.process.place.path):
                    self._forget(key)
                elif _of_one_place(error) is None:
                    self._unsaved = {key: entry, **self._unsaved}  # its turn comes again
                    raise
                continue  # the segment has its rows; the manifest follows with the next batch
            self._opened(key, entry.process)

    def _process(self, header: BatchHeader) -> StoredProcess:
        process = self._known.get(header.key)
        if process is not None and is_gone(process.place.path):  # its run was deleted: what comes now begins it anew
            self._forget(header.key)
            process = None
        if process is None:
            process = self._known[header.key] = StoredProcess(self._directory, header)
            if len(self._known) % _FREEZE_EVERY == 0:  # they stay: looking through them at every collection takes long
                gc.collect()
                gc.freeze()
        self._known.move_to_end(header.key)
        self._opened(header.key, process)
        if len(self._known) > MOST_KNOWN:
            self._let_go(next(iter(self._known)))
        return process

    def _let_go(self, key: Key) -> None:
        """Close a process that has not sent for longest; OSError, and it stays, if it cannot be saved."""
        if key in self._unsaved:
            self._known[key].save()
            del self._unsaved[key]
        self._known.pop(key).close()
        self._open.pop(key, None)

    def _forget(self, key: Key) -> None:
        """Leave a process whose directory is gone."""
        self._unsaved.pop(key, None)
        self._open.pop(key, None)
        self._known.pop(key).park()

    def _opened(self, key: Key, process: StoredProcess) -> None:
        self._open[key] = process
        self._open.move_to_end(key)
        while len(self._open) > self._most_open:
            self._open.popitem(last=False)[1].park()

    # The thread --------------------------------------------------------------------------------------

    def _work(self) -> None:
        _give_way()
        next_save = time.monotonic() + SAVE_S
        while True:
            item: tuple[SignedBatch, OwnNames] | Path | None = None
            with contextlib.suppress(queue.Empty):
                item = self._queue.get(timeout=max(0.01, next_save - time.monotonic()))
                if item is None:
                    break
            if isinstance(item, Path):
                self._journals.append((item, self._written))
            elif item is not None:
                self._until_done(partial(self.write_or_set_aside, *item))
                self.waiting_bytes -= len(item[0].data)
            if time.monotonic() >= next_save:
                self._until_done(partial(self.save, SAVE_S * SAVE_SHARE))
                self._until_done(self._forget_journals)
                next_save = time.monotonic() + SAVE_S
        self._until_done(self.save)
        for process in self._known.values():
            if not is_gone(process.place.path):
                self._guard.run("close", process.close)
        self.set_aside.close()

    def _forget_journals(self) -> None:
        """Remove files of the journal whose batches are all in files of the runs that are saved."""
        oldest = next(iter(self._unsaved.values())).since if self._unsaved else self._written + 1
        while self._journals and self._journals[0][1] < oldest:
            sync_file_system(self._directory)
            self._journals[0][0].unlink(missing_ok=True)
            self._journals.popleft()

    def _until_done(self, action: Callable[[], None]) -> None:
        """Do it; on a full disk again and again, since the journal has promised it."""
        while self._guard.run("write", _tried, action) is False and not self._is_closing:
            time.sleep(_RETRY_S)
        self._guard.failures.clear()


def _give_way() -> None:
    """Have this thread run after those that acknowledge; only Linux has priorities of threads."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _tried(action: Callable[[], None]) -> bool:
    try:
        action()
    except (OSError, RecordingError):
        return False
    return True


def _of_one_place(error: Exception) -> OSError | None:
    """The failure behind it, if it is one of names and permissions in one place and not of the disk."""
    cause = error if isinstance(error, OSError) else error.__context__
    return cause if isinstance(cause, OSError) and cause.errno in _OF_ONE_PLACE else None


def _allowed_files(wanted: int) -> int:
    """How many files this process may have open, once it has asked for as many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return most if soft == resource.RLIM_INFINITY else min(most, soft)
