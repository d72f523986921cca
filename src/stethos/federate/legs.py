"""Where a round stands: signs of life of the server and of its clients, as rows of `legs`.

A client's process says at once that it has the model and that it has answered. Beside that a thread of ours says
every few seconds what is open in this process, so that silence itself can be seen: short federations write nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

from stethos.federate.row import put_row
from stethos.guard import attempt
from stethos.observe import boot
from stethos.schema import LEGS

BEAT_S = 5.0
_FIRST_S = 1.0
Work = Literal["train", "evaluate"]
_MOST_OPEN = 100  # clients that a server's row names
_NO_ROUND = 0


class BeatSource(Protocol):
    """Something that is open in this process, and says so."""

    def beat(self) -> None: ...


class Heartbeat:
    """Lets sources say every few seconds that they are there; its thread lives while there are any."""

    def __init__(self) -> None:
        self._sources: list[BeatSource] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def add(self, source: BeatSource) -> None:
        with self._lock:
            if self._pid != os.getpid():  # forked: the thread and what it spoke of are the parent's
                self._pid, self._sources, self._thread = os.getpid(), [], None
            self._sources.append(source)
            if self._thread is None:
                self._wake = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._wake,), name="stethos-heartbeat", daemon=True
                )
                attempt(self._thread.start)

    def remove(self, source: BeatSource) -> None:
        with self._lock:
            if source in self._sources:
                self._sources.remove(source)
            if not self._sources:
                self._thread = None
                self._wake.set()

    def _run(self, wake: threading.Event) -> None:
        pause_s = _FIRST_S
        while not wake.wait(pause_s):
            pause_s = BEAT_S
            with self._lock:
                sources = list(self._sources)
            for source in sources:
                attempt(source.beat)


HEARTBEAT = Heartbeat()


class ServerLegs:
    """What the server of a federation waits for: the phase of its round, and who has not answered yet.

    Called by the loop's threads, read by the heartbeat's: plain assignments and single operations on a dict.
    """

    def __init__(self, federation: str) -> None:
        self._federation = federation
        self._round = _NO_ROUND
        self._stage: tuple[str, int] = ("between", time.monotonic_ns())
        self._open: dict[tuple[str, Work], tuple[str, int]] = {}
        self._has_begun = self._has_spoken = False
        self._absent: set[str] = set()
        self._seen: set[str] = set()

    def expect(self, clients: Iterable[str]) -> None:
        """Who is to come for the message of this round, where clients fetch it themselves."""
        self._absent = set(clients) - {client for client, _ in self._open}

    @property
    def never_came(self) -> set[str]:
        """Those of whom no message was ever fetched."""
        return self._absent - self._seen

    def begin_round(self, number: int) -> None:
        self._round = number
        self._open = {}
        self._stage = ("waiting", time.monotonic_ns())
        if not self._has_begun:
            self._has_begun = True
            HEARTBEAT.add(self)

    def end_round(self) -> None:
        self._open = {}
        self._stage = ("between", time.monotonic_ns())

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The server itself works: it selects, aggregates or evaluates."""
        before, self._stage = self._stage, (name, time.monotonic_ns())
        try:
            yield
        finally:
            self._stage = (before[0], time.monotonic_ns())

    def ask(self, client: str, leg: Literal["sent", "turn"], work: Work = "train") -> None:
        """A message has left for a client, or its turn runs in this process."""
        self._open[client, work] = (leg, time.monotonic_ns())
        self._absent.discard(client)
        self._seen.add(client)

    def answered(self, client: str, work: Work = "train") -> None:
        self._open.pop((client, work), None)
        self._stage = (self._stage[0], time.monotonic_ns())

    def close(self) -> None:
        """The federation is over, and says so where it has said anything."""
        if self._has_begun:
            self._has_begun = False
            HEARTBEAT.remove(self)
            if self._has_spoken:
                attempt(self._write, "closed", 0.0, "")

    def beat(self) -> None:
        stage, since_ns = self._stage
        now_ns = time.monotonic_ns()
        waiting = sorted(list(self._open.items()), key=lambda one: one[1][1])  # noqa: C414  # a copy first: threads
        told = [[who, work, leg, round((now_ns - begun_ns) * 1e-9, 1)] for (who, work), (leg, begun_ns) in waiting]
        absent = sorted(self.never_came)[:_MOST_OPEN] if stage == "waiting" and not told else []
        words = json.dumps({"open": told[:_MOST_OPEN], "count": len(told), "never_came": absent})
        words = words if told or absent else ""
        self._has_spoken = True
        self._write(stage, (now_ns - since_ns) * 1e-9, words)

    def _write(self, leg: str, age_s: float, words: str) -> None:
        session = boot.current_session()
        if session is not None:
            values = {"federation": self._federation, "side": "server", "leg": leg, "age_s": age_s, "words": words}
            put_row(session, LEGS, values, client=None, round=self._round, t_ns=session.now_ns())


class ClientLegs:
    """A client's turn in a process of its own: received, computing, replied."""

    def __init__(self, federation: str, client: str, number: int, work: Work = "train") -> None:
        self._federation = federation
        self._client = client
        self._round = number
        self._work = work
        self._since_ns = time.monotonic_ns()
        self.digest: str | None = None  # of the model that it was given

    def begin(self) -> None:
        self._since_ns = time.monotonic_ns()
        attempt(self._write, "received")
        HEARTBEAT.add(self)

    def end(self) -> None:
        HEARTBEAT.remove(self)
        attempt(self._write, "replied")

    def beat(self) -> None:
        self._write("computing")

    def _write(self, leg: str) -> None:
        session = boot.current_session()
        if session is not None:
            values = {
                "federation": self._federation, "side": "client", "leg": leg, "work": self._work,
                "age_s": (time.monotonic_ns() - self._since_ns) * 1e-9,
                "digest": self.digest if leg == "replied" else None,
            }  # fmt: skip
            put_row(session, LEGS, values, client=self._client, round=self._round, t_ns=session.now_ns())
