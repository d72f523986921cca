"""Sends what waits in a site's spools, from a thread of the drainer: short requests, each of which can be repeated.

The channel is one-way. Of an answer only two things are looked at: that a batch is stored, and how long to wait. All
else that an answer says is written down at the site, and nothing comes of it.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import deque
from pathlib import Path
from typing import Protocol

from stethos.collect.answer import MOST_ANSWER_BYTES, Answer, read_answer
from stethos.collect.batch import LANES
from stethos.collect.site import SiteHome
from stethos.collect.spool import Spool, SpoolEntry
from stethos.errors import LiveError
from stethos.guard import Guard
from stethos.web.remote import PinnedConnection, headers_for

BATCH_PATH = "/api/collect/batch"
ANSWER_S = 30.0
CONNECT_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 30.0
IDLE_S = 0.2
SAVE_S = 1.0
REFUSED = (400, 413, 422)  # this batch, for good
_OTHER_KEYS = "enrol again with a new token, unless its old keys come back: what waits here is then sent"


class SpoolOwner(Protocol):
    """Who has the spools; `spools` is called with `mutex` held."""

    mutex: threading.Lock

    def spools(self) -> list[Spool]: ...


class Sender:
    """One thread, one connection. `is_failing`: nobody takes what is sent, for now."""

    def __init__(self, site: SiteHome, owner: SpoolOwner, refusals: tuple[int, ...] = REFUSED) -> None:
        """`refusals`: statuses by which a batch is refused for good, and dropped; others are tried again."""
        self.site = site
        self.is_failing = False
        self.refused = 0
        self.failure = ""  # why the last batch that was not taken was not
        self._owner = owner
        self._refusals = refusals
        self._guard = Guard(lambda place, reason: site.note(what=place, why=reason))
        self._connection: PinnedConnection | None = None
        self._read: dict[tuple[Path, int], deque[SpoolEntry]] = {}
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._is_empty = threading.Event()
        self._last_ack = time.monotonic()
        self._next_save = 0.0
        self._wait_s = FIRST_WAIT_S
        self._noted: set[str] = set()
        self._refused_for: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="stethos-sender", daemon=True)
        self._thread.start()

    def leave(self, since_ack_s: float, at_most_s: float) -> None:
        """Wait until everything is sent, or nobody has taken anything for a while; then stop."""
        deadline, began = time.monotonic() + at_most_s, time.monotonic()
        self._is_empty.clear()
        self._wake.set()  # whatever it waits for: this is the last chance
        while time.monotonic() < deadline and not self._is_empty.wait(0.02):
            if time.monotonic() - max(self._last_ack, began) > since_ack_s:
                break
        self._stopping.set()
        self._wake.set()
        self._thread.join(0.05)  # it may be inside a request; it is a daemon

    def _work(self) -> None:
        while not self._stopping.is_set():
            wait_s = self._guard.run("send", self._send_next)
            self._guard.failures.clear()
            self._wake.wait(LONGEST_WAIT_S if wait_s is None else wait_s)
            self._wake.clear()
        self._drop_connection()

    def _send_next(self) -> float:
        """Send one batch; return how long to wait before the next."""
        found = self._next()
        if found is None:
            self._save()
            self._is_empty.set()
            return IDLE_S
        self._is_empty.clear()
        spool, entry = found
        try:
            answer = self._post(entry.data)
        except (OSError, http.client.HTTPException, LiveError) as error:
            self._drop_connection()
            self._note_once(f"{error.message}; {_OTHER_KEYS}" if isinstance(error, LiveError) else str(error))
            return self._failed()
        if answer.beyond:
            self.site.note(what="collector", outcome="refused", asked=answer.beyond)
        if answer.status == 200 or answer.status in self._refusals:
            self._taken(spool, entry, is_refused=answer.status != 200)
            if answer.status != 200:
                self._note_refusal(f"{answer.status}: {answer.error}")
            return 0.0
        self._note_once(f"{answer.status}: {answer.error}")
        return max(answer.wait_s, 0.05) if answer.wait_s is not None else self._failed()

    def _next(self) -> tuple[Spool, SpoolEntry] | None:
        """The most important batch that waits, of the spool that comes first."""
        with self._owner.mutex:
            spools = self._owner.spools()
            for lane in LANES:
                for spool in spools:
                    waiting = self._read.setdefault((spool.path, lane), deque())
                    while waiting and waiting[0].number <= spool.acked[lane]:
                        waiting.popleft()
                    if not waiting:
                        waiting.extend(self._fill(spool, lane))
                    if waiting:
                        spool.attempted[lane] = max(spool.attempted[lane], waiting[0].number)
                        return spool, waiting[0]
        return None

    def _fill(self, spool: Spool, lane: int) -> list[SpoolEntry]:
        """The batches of the next file: a file is read once, not for each of its batches."""
        found: list[SpoolEntry] = []
        for file in spool.files[lane]:
            found = [one for one in spool.entries(lane, max(spool.acked[lane], file.first - 1))
                     if one.number <= file.last]  # fmt: skip
            if found:
                break
        return found

    def _post(self, data: bytes) -> Answer:
        """The answer to a batch. A kept connection may have been ended meanwhile: then once more over a new one."""
        if self._connection is not None:
            try:
                return self._exchange(data)
            except TimeoutError:
                raise
            except (OSError, http.client.HTTPException):
                self._drop_connection()
        return self._exchange(data)

    def _exchange(self, data: bytes) -> Answer:
        if self._connection is None:
            host, _, port = self.site.address.rpartition(":")
            self._connection = PinnedConnection(host.strip("[]"), int(port), self.site.fingerprint, CONNECT_S, ANSWER_S)
            self._connection.connect()
        self._connection.request("POST", BATCH_PATH, data, headers_for({"Content-Type": "application/octet-stream"}))
        reply = self._connection.getresponse()
        content = reply.read(MOST_ANSWER_BYTES + 1)
        if reply.will_close or len(content) > MOST_ANSWER_BYTES:
            self._drop_connection()
        return read_answer(reply.status, reply.getheaders(), content)

    def _taken(self, spool: Spool, entry: SpoolEntry, *, is_refused: bool) -> None:
        with self._owner.mutex:
            spool.acknowledge({entry.lane: entry.number})
            if is_refused:
                self.refused += 1
                spool.refused_rows += entry.rows
        self._last_ack, self._wait_s, self.is_failing = time.monotonic(), FIRST_WAIT_S, False
        self._noted.clear()
        if time.monotonic() >= self._next_save:
            self._save()

    def _save(self) -> None:
        """Write down what was acknowledged; what a crash forgets is sent once more and stored once."""
        self._next_save = time.monotonic() + SAVE_S
        with self._owner.mutex:
            for spool in self._owner.spools():
                if spool.kept.get("saved") != spool.acked:
                    spool.kept["saved"] = list(spool.acked)
                    spool.save()

    def _failed(self) -> float:
        self.is_failing = True
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
        return wait_s * random.uniform(0.5, 1.0)

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _note_refusal(self, why: str) -> None:
        self.failure = why
        if why not in self._refused_for and len(self._refused_for) < 10:
            self._refused_for.add(why)
            self.site.note(what="send", outcome="refused for good: such rows are dropped", why=why[:500])

    def _note_once(self, why: str) -> None:
        self.failure = why
        if why not in self._noted and len(self._noted) < 10:
            self._noted.add(why)
            self.site.note(what="send", why=why[:500])
