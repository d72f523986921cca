"""Takes batches from clients: checked, written to the journal, synced, acknowledged, and then put into their runs.

A batch that was taken before is acknowledged again and left out. Nothing is acknowledged that a power cut could lose.
One thread writes the runs; when it falls behind, or the disk is full, clients are told to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import queue
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stethos.collect.aliases import OwnNames
from stethos.collect.batch import BatchError, BatchHeader, SignedBatch, decode_batch
from stethos.collect.enrolment import EnrolledClient, Enrolment
from stethos.collect.intervals import Intervals
from stethos.collect.journal import Journal, batches_in
from stethos.collect.stored_process import StoredProcess, stored_numbers
from stethos.errors import StethosError
from stethos.guard import Guard
from stethos.record.border import make_directory, sync_file_system

JOURNAL_DIR = ".collector"
MOST_WAITING_BYTES = 64 << 20
MOST_KNOWN, MOST_OPEN = 20_000, 200  # processes in memory, and those of them whose segment is open
MOST_STREAMS = 50_000
SAVE_S = 2.0
RATE_BATCHES, BURST_BATCHES = 8.0, 240.0  # a second, and saved up; of one client
RATE_BYTES, BURST_BYTES = 4e6, 64e6
_RETRY_S = 1.0
_FREEZE_EVERY = 1000
Key = tuple[str, str, str, str]


class BusyError(StethosError):
    """Not now: come again after `wait_s`."""

    def __init__(self, message: str, wait_s: float, status: int = 503) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        self.status = status


@dataclass(slots=True)
class Bucket:
    """What a client may still send now; it fills with time."""

    batches: float = BURST_BATCHES
    bytes: float = BURST_BYTES
    at: float = 0.0

    def take(self, size: int, now: float) -> float:
        """Take a batch out; return how long to wait, 0 if it was there."""
        passed = max(0.0, now - self.at) if self.at else 0.0
        self.at = now
        self.batches = min(BURST_BATCHES, self.batches + passed * RATE_BATCHES)
        self.bytes = min(BURST_BYTES, self.bytes + passed * RATE_BYTES)
        missing = max((1 - self.batches) / RATE_BATCHES, (size - self.bytes) / RATE_BYTES)
        if missing > 0:
            return missing
        self.batches -= 1
        self.bytes -= size
        return 0.0


class Receiver:
    """The collector of one directory of runs; `run` puts everything into that one run, whatever clients call it."""

    def __init__(self, directory: Path, enrolment: Enrolment, run: str | None = None) -> None:
        make_directory(directory)
        self.directory = directory
        self.enrolment = enrolment
        self.run = run
        self.taken = self.repeated = self.refused = 0
        self._journal = Journal(directory / JOURNAL_DIR)
        self._runs = RunWriter(directory)
        self._streams: OrderedDict[Key, dict[int, Intervals]] = OrderedDict()
        self._flying: dict[tuple[Key, int, int], asyncio.Future[None]] = {}
        self._buckets: dict[str, Bucket] = {}
        self._pending: list[tuple[SignedBatch, OwnNames, asyncio.Future[None]]] = []
        self._committing: asyncio.Task[None] | None = None
        self._recover()

    def _recover(self) -> None:
        """Put into their runs what the journal has and they may not have."""
        clients = self.enrolment.clients()
        for path in self._journal.files():
            for data in batches_in(path):
                with contextlib.suppress(BatchError):
                    batch = self._addressed(decode_batch(data))
                    client = clients.get(batch.header.client)
                    if client is not None:
                        self._runs.write(batch, OwnNames(client, self.directory / batch.header.run))
        self._runs.save_all()
        sync_file_system(self.directory)
        for path in self._journal.files():
            path.unlink()
        self._runs.start()

    def _addressed(self, batch: SignedBatch) -> SignedBatch:
        if self.run is None or batch.header.run == self.run:
            return batch
        return replace(batch, header=replace(batch.header, run=self.run))

    # A batch -----------------------------------------------------------------------------------------

    async def take(self, data: bytes) -> dict[str, Any]:
        """Take a batch; the answer to its client, once the disk has it. BatchError or BusyError if not."""
        batch = decode_batch(data)
        client = self.enrolment.check(batch)
        wait_s = self._buckets.setdefault(client.name, Bucket()).take(len(data), time.monotonic())
        if wait_s:
            raise BusyError("this client sends more than its share", min(wait_s, 60.0), 429)
        batch = self._addressed(batch)
        header = batch.header
        lanes, where = self._stream_of(header), (header.key, header.lane, header.number)
        if where in self._flying:  # sent twice at once: both wait for the same sync
            await asyncio.wait([self._flying[where]])
        if header.number in lanes[header.lane]:
            self.repeated += 1
            return {"stored": True}
        if self._runs.waiting_bytes > MOST_WAITING_BYTES:
            raise BusyError("the collector writes what came before", 5.0)
        try:
            lanes[header.lane].add(header.number)
        except ValueError:
            raise BatchError("too many batches of this process are missing") from None
        try:
            await self._commit(batch, client)
        except BusyError:
            lanes[header.lane].discard(header.number)
            raise
        self.taken += 1
        return {"stored": True}

    def _stream_of(self, header: BatchHeader) -> dict[int, Intervals]:
        """The numbers of a process's batches that are here."""
        known = self._streams.get(header.key)
        if known is None:
            known = self._streams[header.key] = stored_numbers(self.directory, header)
            while len(self._streams) > MOST_STREAMS:
                self._streams.popitem(last=False)
        self._streams.move_to_end(header.key)
        return known

    async def _commit(self, batch: SignedBatch, client: EnrolledClient) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_seen)  # its client may have hung up
        where = (batch.header.key, batch.header.lane, batch.header.number)
        self._flying[where] = future
        self._pending.append((batch, OwnNames(client, self.directory / batch.header.run), future))
        if self._committing is None or self._committing.done():
            self._committing = asyncio.create_task(self._commit_group())
        try:
            await asyncio.shield(future)
        except OSError as error:
            raise BusyError(f"the collector cannot write: {error.strerror}", 10.0) from None
        finally:
            self._flying.pop(where, None)

    async def _commit_group(self) -> None:
        """Sync what has come, again and again, until nothing more comes; those who come meanwhile share the next."""
        while self._pending:
            group, self._pending = self._pending, []
            try:
                await asyncio.to_thread(self._journal.commit, [batch.data for batch, _, _ in group])
                if self._journal.wants_roll:
                    self._runs.put_marker(await asyncio.to_thread(self._journal.roll))
            except OSError as error:
                for _, _, future in group:
                    if not future.done():
                        future.set_exception(error)
                continue
            for batch, names, future in group:
                self._runs.put(batch, names)
                if not future.done():
                    future.set_result(None)

    def close(self) -> None:
        """Write everything into the runs; the journal is empty afterwards."""
        if self._runs.close():
            sync_file_system(self.directory)
            self._journal.close()
            for path in self._journal.files():
                path.unlink(missing_ok=True)


class RunWriter:
    """Writes batches into run directories, in the order in which they came, from one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: OrderedDict[Key, StoredProcess] = OrderedDict()
        self._open: OrderedDict[Key, StoredProcess] = OrderedDict()
        self._dirty: dict[Key, StoredProcess] = {}
        self._queue: queue.SimpleQueue[tuple[SignedBatch, OwnNames] | Path | None] = queue.SimpleQueue()
        self._guard = Guard()
        self._is_closing = False
        self.waiting_bytes = 0
        self.rows = 0
        self._thread = threading.Thread(target=self._work, name="stethos-runs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, batch: SignedBatch, names: OwnNames) -> None:
        self.waiting_bytes += len(batch.data)
        self._queue.put((batch, names))

    def put_marker(self, journal: Path | None) -> None:
        """When everything before this is written, that file of the journal may go."""
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
        self._dirty[batch.header.key] = process

    def save_all(self) -> None:
        """Bring the manifests up to date."""
        for key, process in list(self._dirty.items()):
            process.save()
            self._opened(key, process)
            del self._dirty[key]

    def _process(self, header: BatchHeader) -> StoredProcess:
        process = self._known.get(header.key)
        if process is None:
            process = self._known[header.key] = StoredProcess(self._directory, header)
            if len(self._known) % _FREEZE_EVERY == 0:  # they stay: looking through them at every collection takes long
                gc.collect()
                gc.freeze()
        self._known.move_to_end(header.key)
        self._opened(header.key, process)
        if len(self._known) > MOST_KNOWN:
            self.save_all()
            key, oldest = self._known.popitem(last=False)
            self._open.pop(key, None)
            oldest.close()
        return process

    def _opened(self, key: Key, process: StoredProcess) -> None:
        self._open[key] = process
        self._open.move_to_end(key)
        while len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)[1].park()

    def _work(self) -> None:
        next_save = time.monotonic() + SAVE_S
        while True:
            item: tuple[SignedBatch, OwnNames] | Path | None = None
            with contextlib.suppress(queue.Empty):
                item = self._queue.get(timeout=max(0.01, next_save - time.monotonic()))
                if item is None:
                    break
            if isinstance(item, Path):
                self._until_done(lambda path=item: self._forget(path))
            elif item is not None:
                self._until_done(lambda pair=item: self.write(*pair))
                self.waiting_bytes -= len(item[0].data)
            if time.monotonic() >= next_save:
                next_save = time.monotonic() + SAVE_S
                self._until_done(self.save_all)
        self._until_done(self.save_all)
        for process in self._known.values():
            process.close()

    def _forget(self, journal: Path) -> None:
        self.save_all()
        sync_file_system(self._directory)
        journal.unlink(missing_ok=True)

    def _until_done(self, action: Any) -> None:
        """Do it; on a full disk again and again, since the journal has promised it."""
        while self._guard.run("write", _tried, action) is False and not self._is_closing:
            time.sleep(_RETRY_S)
        self._guard.failures.clear()


def _seen(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()


def _tried(action: Any) -> bool:
    try:
        action()
    except OSError:
        return False
    return True
