"""How much each client may send. One that asks for more is answered late, before anything of its batch is checked.

A late answer costs nothing here and holds the client's connection, from which nothing more is read meanwhile: so a
client that asks a hundred times too often takes hardly more of the collector than one that keeps to its share. Only so
many answers are held; what comes beyond that is answered at once, and its connection is closed.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from stethos.errors import StethosError

RATE_BATCHES, BURST_BATCHES = 8.0, 240.0  # a second, and saved up; of one client
RATE_BYTES, BURST_BYTES = 4e6, 64e6
LONGEST_WAIT_S = 60.0
LATE_S = 1.0
MOST_LATE_OF_ONE, MOST_LATE = 32, 512  # answers that are held, of one client and of all


class BusyError(StethosError):
    """Not now: come again after `wait_s`; `ends` if the connection is to be closed."""

    def __init__(self, message: str, wait_s: float, status: int = 503, *, ends: bool = False) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        self.status = status
        self.ends = ends


@dataclass(slots=True)
class Bucket:
    """What a client may still send now; it fills with time."""

    batches: float = float("inf")  # at first as many as can be saved up
    bytes: float = float("inf")
    at: float = 0.0
    late: int = 0  # answers that are held now

    def missing_s(self, size: int, now: float) -> float:
        """How long until so many bytes may come; 0 if they may now."""
        passed = max(0.0, now - self.at) if self.at else 0.0
        self.at = now
        self.batches = min(BURST_BATCHES, self.batches + passed * RATE_BATCHES)
        self.bytes = min(BURST_BYTES, self.bytes + passed * RATE_BYTES)
        return max(0.0, (1 - self.batches) / RATE_BATCHES, (size - self.bytes) / RATE_BYTES)

    def take(self, size: int) -> None:
        self.batches -= 1
        self.bytes -= size


class Shares:
    """The buckets of all clients."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}
        self._late = 0

    async def knock(self, name: str, size: int) -> None:
        """Before a signature is checked: BusyError, after a while, if the client of that name has used up its share.

        Nothing is taken from the share, so nobody can use up that of another by giving its name.
        """
        bucket = self._buckets.get(name)
        wait_s = bucket.missing_s(size, time.monotonic()) if bucket is not None else 0.0
        if bucket is not None and wait_s > 0:
            raise _too_much(wait_s, ends=not await self._held(bucket, wait_s))

    def take(self, name: str, size: int) -> None:
        """Of a client whose signature is right; BusyError if another of its batches was faster."""
        bucket = self._buckets.setdefault(name, Bucket())
        wait_s = bucket.missing_s(size, time.monotonic())
        if wait_s > 0:
            raise _too_much(wait_s)
        bucket.take(size)

    async def _held(self, bucket: Bucket, wait_s: float) -> bool:
        """Let time pass before the answer; False, at once, if too many answers are held."""
        if bucket.late >= MOST_LATE_OF_ONE or self._late >= MOST_LATE:
            return False
        bucket.late, self._late = bucket.late + 1, self._late + 1
        try:
            await asyncio.sleep(min(wait_s, LATE_S))
        finally:
            bucket.late, self._late = bucket.late - 1, self._late - 1
        return True


def _too_much(wait_s: float, *, ends: bool = False) -> BusyError:
    return BusyError("this client sends more than its share", min(wait_s, LONGEST_WAIT_S), 429, ends=ends)
