"""A relay: takes batches as a collector does, and sends them on as they are.

One stands at the border of a site's network, for clients that reach nothing beyond. It cannot change a batch or invent
one, since the collector checks the signature of the client itself. A batch is acknowledged once it is on the relay's
disk, and kept until the collector has acknowledged it; when too much waits, clients are told to wait.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from stethos.collect.batch import BatchError, SignedBatch, decode_batch
from stethos.collect.enrolment import Enrolment
from stethos.collect.gate import check_batch
from stethos.collect.sender import Sender
from stethos.collect.shares import BusyError, Shares
from stethos.collect.site import SiteHome
from stethos.collect.site_policy import SitePolicy
from stethos.collect.spool import Spool
from stethos.errors import LiveError
from stethos.record.border import make_directory
from stethos.record.spawn import take_lock

MOST_WAITING_BYTES = 1 << 30
LEAVE_S, LEAVE_AT_MOST_S = 1.0, 10.0
_REFUSED = (400, 403, 413, 422)  # upstream: this batch, for good


class Relay:
    """Stands in for a `Receiver`; `site` is how the relay itself is known upstream."""

    def __init__(self, site: SiteHome, enrolment: Enrolment) -> None:
        path = site.spool / "relay" / "relay"
        make_directory(path)
        lock = take_lock(path / "lock")
        if lock is None:
            raise LiveError(f"another relay uses {site.path}", hint="one relay per site directory")
        self.site = site
        self.enrolment = enrolment
        self.refused = 0
        self.mutex = threading.Lock()
        self._lock = lock
        self._policy = SitePolicy(site)
        self._spool = Spool.load(path)
        self._shares = Shares()
        self._sender = Sender(site, self, _REFUSED)

    def spools(self) -> list[Spool]:
        return [self._spool]

    async def take(self, data: bytes) -> dict[str, Any]:
        """Take a batch; the answer to its client, once the disk has it. BatchError or BusyError if not."""
        batch = decode_batch(data)
        await self._shares.knock(batch.header.client, batch.cost_bytes)
        self.enrolment.check(batch)
        self._shares.take(batch.header.client, batch.cost_bytes)
        await asyncio.to_thread(self._check, batch)
        try:
            await asyncio.to_thread(self._store, batch.header.lane, batch.header.rows, data)
        except OSError as error:
            raise BusyError(f"the relay cannot write: {error.strerror}", 10.0) from None
        return {"stored": True}

    def _check(self, batch: SignedBatch) -> None:
        """Refuse what this site's policy keeps back, and write it down."""
        with self.mutex:
            policy = self._policy.current()
        try:
            check_batch(policy, batch)
        except BatchError as error:
            self.site.note(what="policy", outcome="refused", client=batch.header.client, why=error.message)
            raise

    def _store(self, lane: int, rows: int, data: bytes) -> None:
        with self.mutex:
            if self._spool.size_bytes > MOST_WAITING_BYTES:
                raise BusyError("the relay waits for the collector", 30.0)
            self._spool.append(lane, self._spool.next_numbers[lane], rows, data, is_synced=True)
            self._spool.save()

    def close(self) -> None:
        self._sender.leave(LEAVE_S, LEAVE_AT_MOST_S)
        with self.mutex:
            self._spool.save()
        os.close(self._lock)
