"""The directory of runs that is shown: which there are, and answers about them that still hold."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from stethos.errors import RunNotFoundError
from stethos.record.place import RunPlace
from stethos.store.find import is_live, list_runs
from stethos.web.readers import Readers
from stethos.web.version import Version, look_at

_SETTLED_NS, _LISTED_NS = 10_000_000_000, 30_000_000_000
_CACHED_BYTES = 48 << 20
_ENTRY_BYTES = 500  # of an answer's key and place


class _Listing(NamedTuple):
    """The runs of a directory, of which change of it, and when they were read."""

    places: list[RunPlace]
    changed_ns: int
    read_ns: int


class RunCache:
    """Everything below one directory. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self.readers = Readers()
        self._turns: dict[str, threading.Lock] = {}
        self._answers: OrderedDict[tuple[str, ...], bytes] = OrderedDict()
        self._versions: dict[str, str] = {}  # of the runs that the answers are about
        self._size = 0
        self._making = 0  # answers under way
        self._made_s = time.monotonic()  # when the last one was there
        self._listed: _Listing | None = None

    def places(self) -> list[RunPlace]:
        """Every run, newest first; links that lead out of the directory are left out."""
        try:
            changed_ns = os.stat(self.directory).st_mtime_ns
        except OSError:
            return []
        now_ns, known = time.time_ns(), self._listed
        # A run's own files come a moment after its directory, so a fresh change is looked at again.
        if (
            known is not None
            and known.changed_ns == changed_ns
            and known.read_ns - changed_ns > _SETTLED_NS
            and now_ns - known.read_ns < _LISTED_NS
        ):
            return known.places
        root = self.directory.resolve()
        places = [
            place
            for place in list_runs(self.directory)
            if not os.path.islink(place.path) or place.path.resolve().parent == root
        ]
        self._listed = _Listing(places, changed_ns, now_ns)
        return places

    def recent(self, within_s: float) -> list[RunPlace]:
        """The live runs, and those in which something was written during the last `within_s`."""
        since = time.time() - within_s
        return [place for place in self.places() if is_live(place) or place.path.stat().st_mtime > since]

    def place(self, name: str) -> RunPlace:
        """The run of that name; RunNotFoundError if there is none, whatever the name looks like."""
        is_plain = name not in ("", ".", "..") and not name.startswith(".") and not set(name) & set("/\\\0")
        place = RunPlace(self.directory / name)
        if not is_plain or place.path.resolve().parent != self.directory.resolve() or not place.exists():
            raise RunNotFoundError(f"no run {name!r} in {self.directory}", hint="it may have been deleted; go to Runs")
        return place

    def version(self, name: str, *, with_findings: bool = True) -> str:
        seen = self.look_at(name)
        return seen.text if with_findings else seen.rows

    def look_at(self, name: str) -> Version:
        """How the files of a run are now."""
        place = self.place(name)
        try:
            return look_at(place.path)
        except OSError:
            raise RunNotFoundError(f"run {name!r} is gone", hint="it may have been deleted; go to Runs") from None

    def read(self, name: str, job: str, **given: Any) -> bytes:
        """The answer of a reading process to a job about a run, one after the other."""
        with self._turn(name):
            return self.readers.ask([self.place(name).path], job, **given)

    def answer(self, name: str, key: tuple[str, ...], job: str, others: Sequence[str] = (), **given: Any) -> bytes:
        """What a job says about a run, and `others`, or what it said when the files of all were the same as now."""
        full = (name, self.version(name), *key, *map(self.version, others))
        known = self._known(full)
        if known is not None:
            return known
        with self._made(), self._turn(name):
            known = self._known(full)  # somebody else may have asked the same meanwhile
            if known is None:
                known = self.readers.ask([self.place(one).path for one in (name, *others)], job, **given)
                self._keep(full, known)
        return known

    def close(self) -> None:
        """End the processes that read."""
        self.readers.close()

    def _turn(self, name: str) -> threading.Lock:
        """Held by whoever has a run read."""
        with self._lock:
            return self._turns.setdefault(name, threading.Lock())

    def quiet_s(self) -> float:
        """For how long no answer had to be made; 0 while one is."""
        return 0.0 if self._making else time.monotonic() - self._made_s

    @contextmanager
    def _made(self) -> Iterator[None]:
        with self._lock:
            self._making += 1
        try:
            yield
        finally:
            with self._lock:
                self._making -= 1
                self._made_s = time.monotonic()

    def _known(self, key: tuple[str, ...]) -> bytes | None:
        with self._lock:
            found = self._answers.get(key)
            if found is not None:
                self._answers.move_to_end(key)
            return found

    def _keep(self, key: tuple[str, ...], answer: bytes) -> None:
        name, version, *_ = key
        with self._lock:
            if self._versions.get(name) != version:  # what was said of an older one is not asked for again
                for old in [one for one in self._answers if one[0] == name]:
                    self._size -= len(self._answers.pop(old)) + _ENTRY_BYTES
                self._versions[name] = version
            self._answers[key] = answer
            self._size += len(answer) + _ENTRY_BYTES
            while self._size > _CACHED_BYTES:
                self._size -= len(self._answers.popitem(last=False)[1]) + _ENTRY_BYTES
