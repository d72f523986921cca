"""The directory of runs that is shown: which there are, opened ones, and answers that still hold."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from stethos.errors import RunNotFoundError
from stethos.record.memory import trim_heaps
from stethos.record.place import RunPlace
from stethos.store.find import is_live, list_runs
from stethos.store.run import Run
from stethos.web.version import version_of

_OPEN_RUNS = 4
_SETTLED_NS, _LISTED_NS = 10_000_000_000, 30_000_000_000
_CACHED_BYTES = 48 << 20
_TRIM_EVERY_S = 5.0
_ENTRY_BYTES = 500  # of an answer's key and place
PANEL_MEMORY_BYTES = 192 << 20


class _Listing(NamedTuple):
    """The runs of a directory, of which change of it, and when they were read."""

    places: list[RunPlace]
    changed_ns: int
    read_ns: int


class OpenedRun:
    """One opened run, used by one thread at a time."""

    def __init__(self, place: RunPlace) -> None:
        self.place = place
        self.lock = threading.Lock()
        self._run: Run | None = None

    def run(self) -> Run:
        """The run; hold `lock`."""
        if self._run is None:
            self._run = Run(self.place, memory_bytes=PANEL_MEMORY_BYTES)
        return self._run

    def close(self) -> None:
        """Give the memory back once nobody is reading."""
        with self.lock:
            if self._run is not None:
                self._run.close()


class RunCache:
    """Everything below one directory. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, OpenedRun] = OrderedDict()
        self._answers: OrderedDict[tuple[str, ...], bytes] = OrderedDict()
        self._versions: dict[str, str] = {}  # of the runs that the answers are about
        self._size = 0
        self._trimmed_s = time.monotonic()
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
            self._forget(name)
            raise RunNotFoundError(f"no run {name!r} in {self.directory}", hint="it may have been deleted; go to Runs")
        return place

    def version(self, name: str, *, with_findings: bool = True) -> str:
        place = self.place(name)
        try:
            return version_of(place.path, with_findings=with_findings)
        except OSError:
            self._forget(name)
            raise RunNotFoundError(f"run {name!r} is gone", hint="it may have been deleted; go to Runs") from None

    def opened(self, name: str) -> OpenedRun:
        """The run, opened; only a few stay so."""
        place = self.place(name)
        closing = []
        with self._lock:
            opened = self._opened.pop(name, None) or OpenedRun(place)
            self._opened[name] = opened
            while len(self._opened) > _OPEN_RUNS:
                closing.append(self._opened.popitem(last=False)[1])
        for old in closing:
            old.close()
        return opened

    def answer(self, name: str, key: tuple[str, ...], make: Callable[[Run], bytes]) -> bytes:
        """What `make` says about a run, or what it said when the run's files were the same as now."""
        full = (name, self.version(name), *key)
        known = self._known(full)
        if known is not None:
            return known
        opened = self.opened(name)
        with opened.lock:
            known = self._known(full)  # somebody else may have asked the same meanwhile
            if known is None:
                known = make(opened.run())
                self._keep(full, known)
        if time.monotonic() - self._trimmed_s > _TRIM_EVERY_S:  # what was read of a growing run leaves holes
            self._trimmed_s = time.monotonic()
            trim_heaps()
        return known

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

    def _forget(self, name: str) -> None:
        with self._lock:
            opened = self._opened.pop(name, None)
        if opened is not None:
            opened.close()
