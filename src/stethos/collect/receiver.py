"""Takes batches from clients: checked, written to the journal, synced, acknowledged, and then put into their runs.

A batch that was taken before is acknowledged again and left out. Nothing is acknowledged that a power cut could lose.
One thread writes the runs; when it falls behind, or the disk is full, clients are told to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

from stethos.collect.aliases import OwnNames
from stethos.collect.batch import BatchError, BatchHeader, Key, SignedBatch, decode_batch
from stethos.collect.enrolment import EnrolledClient, Enrolment
from stethos.collect.intervals import Intervals
from stethos.collect.journal import Journal, batches_in
from stethos.collect.run_writer import RunWriter
from stethos.collect.shares import BusyError, Shares
from stethos.collect.stored_process import stored_numbers
from stethos.errors import LiveError
from stethos.record.border import make_directory, sync_file_system
from stethos.record.spawn import take_lock

JOURNAL_DIR, SET_ASIDE_DIR, LOCK_FILE = ".collector", "unwritten", "lock"
MOST_WAITING_BYTES = 64 << 20
MOST_STREAMS = 50_000

Place = tuple[Key, int, int]  # stream, lane, number: one batch


class Receiver:
    """The collector of one directory of runs; `run` puts everything into that one run, whatever clients call it."""

    def __init__(self, directory: Path, enrolment: Enrolment, run: str | None = None) -> None:
        make_directory(directory / JOURNAL_DIR)
        lock = take_lock(directory / JOURNAL_DIR / LOCK_FILE)
        if lock is None:  # it would take the journal of the other for what a crash has left
            raise LiveError(f"another collector collects into {directory}", hint="choose another --dir")
        self._lock: int | None = lock
        self.directory = directory
        self.enrolment = enrolment
        self.run = run
        self.taken = self.repeated = self.refused = 0
        self._journal = Journal(directory / JOURNAL_DIR)
        self._runs = RunWriter(directory, Journal(directory / JOURNAL_DIR / SET_ASIDE_DIR))
        self._streams: OrderedDict[Key, dict[int, Intervals]] = OrderedDict()
        self._flying: dict[Place, asyncio.Future[None]] = {}  # on their way to the disk
        self._shares = Shares()
        self._pending: list[tuple[SignedBatch, OwnNames]] = []
        self._committing: asyncio.Task[None] | None = None
        self._recover()

    def _recover(self) -> None:
        """Put into their runs what the journal has and they may not have; who sent it was checked before."""
        clients = self.enrolment.clients()
        files = [*self._runs.set_aside.files(), *self._journal.files()]
        for path in files:
            for data in batches_in(path):
                with contextlib.suppress(BatchError):
                    batch = self._addressed(decode_batch(data))
                    client = clients.get(batch.header.client, batch.header.client)
                    self._runs.write_or_set_aside(batch, OwnNames(client, self.directory / batch.header.run))
        self._runs.save()
        sync_file_system(self.directory)
        for path in files:
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
        await self._shares.knock(batch.header.client, batch.cost_bytes)
        client = self.enrolment.check(batch)
        self._shares.take(batch.header.client, batch.cost_bytes)
        batch = self._addressed(batch)
        header = batch.header
        flying = self._flying.get(_place(header))  # sent twice at once: both wait for the same sync
        if flying is None:
            if header.number in self._stream_of(header)[header.lane]:
                self.repeated += 1
                return {"stored": True}
            if self._runs.waiting_bytes > MOST_WAITING_BYTES:
                raise BusyError("the collector writes what came before", 5.0)
            flying = self._begin(batch, client)
        try:
            await asyncio.shield(flying)
        except OSError as error:
            raise BusyError(f"the collector cannot write: {error.strerror}", 10.0) from None
        return {"stored": True}

    def _stream_of(self, header: BatchHeader) -> dict[int, Intervals]:
        """The numbers of a process's batches that are here."""
        known = self._streams.get(header.key)
        if known is None:
            if (self.directory / header.run).is_file():
                raise BatchError(f"{header.run!r} is not a run here, but a file")
            known = self._streams[header.key] = stored_numbers(self.directory, header)
            while len(self._streams) > MOST_STREAMS:
                self._streams.popitem(last=False)
        self._streams.move_to_end(header.key)
        return known

    def _begin(self, batch: SignedBatch, client: EnrolledClient) -> asyncio.Future[None]:
        """Have a batch committed with the next group, whether or not its client stays to hear of it."""
        header = batch.header
        try:
            self._stream_of(header)[header.lane].add(header.number)
        except ValueError:
            raise BatchError("too many batches of this process are missing") from None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_seen)
        self._flying[_place(header)] = future
        self._pending.append((batch, OwnNames(client, self.directory / header.run)))
        if self._committing is None or self._committing.done():
            self._committing = asyncio.create_task(self._commit_groups())
        return future

    async def _commit_groups(self) -> None:
        """Sync what has come, again and again, until nothing more comes; those who come meanwhile share the next."""
        while self._pending:
            group, self._pending = self._pending, []
            try:
                await asyncio.to_thread(self._journal.commit, [batch.data for batch, _ in group])
            except OSError as error:
                for batch, _ in group:
                    self._stream_of(batch.header)[batch.header.lane].discard(batch.header.number)
                    self._flying.pop(_place(batch.header)).set_exception(error)
                continue
            for batch, names in group:
                self._runs.put(batch, names)
                self._flying.pop(_place(batch.header)).set_result(None)
            self.taken += len(group)
            if self._journal.wants_roll:  # the marker stands behind all batches of its file
                with contextlib.suppress(OSError):  # the next group tries again
                    self._runs.put_marker(await asyncio.to_thread(self._journal.roll))

    def close(self) -> None:
        """Write everything into the runs; the journal is empty afterwards."""
        if self._lock is None:
            return
        if self._runs.close():
            sync_file_system(self.directory)
            self._journal.close()
            for path in self._journal.files():
                path.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None


def _place(header: BatchHeader) -> Place:
    return header.key, header.lane, header.number


def _seen(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
