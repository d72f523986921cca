"""Reads runs for pages, in processes that are replaced now and then.

Whoever reads a growing run again and again keeps more and more memory: what DuckDB and Arrow free leaves holes between
what lives longer. So the server itself reads no table, and what does is a process that ends after some minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stethos.errors import QueryError
from stethos.web.line_process import LineProcess

_MOST = 2
_LASTS_S = 180.0
_WARM_S = 2.0  # in which a new process has imported what it needs
_IDLE_S = 60.0
_LIMIT_S = 120.0
_END_S = 5.0


class _Reader:
    """One process, since when it is there, and what it has open."""

    def __init__(self) -> None:
        self.process = LineProcess("stethos.web.reading")
        self.began_s = self.used_s = time.monotonic()
        self.runs: set[str] = set()
        self.is_busy = False


class Readers:
    """Hands jobs to reading processes, each of which has one at a time; a second one is there while runs compete.

    Thread-safe. A process is replaced after three minutes, between two jobs, by one that is ready to read.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers: list[_Reader] = []
        self._next: _Reader | None = None  # gets ready to take the place of one whose time is over
        self._is_closed = False

    def begin(self) -> None:
        """Have a process get ready, before anybody asks: the first answer would wait for its start."""
        with self._changed:
            if not self._readers and not self._is_closed:
                self._readers.append(_started())

    def ask(self, runs: Sequence[Path], job: str, **given: Any) -> bytes:
        """The answer to one of the jobs of `web.reading` about these runs; StethosError or OSError if there is none."""
        names = [str(run) for run in runs]
        reader = self._take(names[0])
        try:
            return reader.process.ask({"job": job, "runs": names, "given": given}, _LIMIT_S)
        finally:
            self._give_back(reader, names)

    def close(self) -> None:
        """End the processes; who waits for an answer gets a QueryError."""
        with self._changed:
            self._is_closed = True
            for reader in self._readers:
                reader.process.kill()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not any(reader.is_busy for reader in self._readers), _END_S)
            readers = [*self._readers, *([self._next] if self._next else [])]
            self._readers, self._next = [], None
        for reader in readers:
            reader.process.close()

    def _take(self, run: str) -> _Reader:
        """A process that is free: the one that has the run open, if there is one."""
        with self._changed:
            while True:
                if self._is_closed:
                    raise QueryError("the server is about to stop", hint="start it again")
                free = [reader for reader in self._readers if not reader.is_busy]
                if free:
                    taken = max(free, key=lambda reader: run in reader.runs)
                    break
                if len(self._readers) < _MOST:
                    self._readers.append(taken := _started())
                    break
                self._changed.wait()
            taken.is_busy = True
            return taken

    def _give_back(self, used: _Reader, runs: Sequence[str]) -> None:
        now_s = time.monotonic()
        with self._changed:
            used.is_busy, used.used_s = False, now_s
            used.runs.update(runs)
            over = [] if self._is_closed else self._over(used, now_s)
            self._readers = [reader for reader in self._readers if reader not in over]
            self._changed.notify_all()
        for reader in over:
            reader.process.close()

    def _over(self, used: _Reader, now_s: float) -> list[_Reader]:
        """Those that are not needed any more, or whose time is over and whose successor is ready, which is put in."""
        free = [reader for reader in self._readers if not reader.is_busy]
        over = [reader for reader in free if reader is not used and now_s - reader.used_s > _IDLE_S]
        old = [reader for reader in free if now_s - reader.began_s > _LASTS_S and reader not in over]
        if old and self._next is None:
            self._next = _started()
        elif old and self._next is not None and now_s - self._next.began_s > _WARM_S:
            self._readers.append(self._next)
            self._next = None
            over.append(old[0])
        return over


def _started() -> _Reader:
    reader = _Reader()
    reader.process.start()
    return reader
