"""Server-Sent Events: a run's page is told at once when the run has changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from anyio import to_thread

from stethos.errors import RunNotFoundError
from stethos.web.encode import encode
from stethos.web.examine import BackgroundDiagnosis
from stethos.web.run_cache import RunCache
from stethos.web.version import Version

_LOOK_S = 0.15
_PAUSE_S = 0.25  # after a change: readers need time, too
_BEAT_S = 5.0
_LOSS_S = 2.0  # after files were lost: the rest may follow, file by file, on a slow disk


class Watcher:
    """Looks at one run's files several times a second, for as long as anybody listens and the server goes on."""

    def __init__(
        self, cache: RunCache, examiner: BackgroundDiagnosis, name: str, is_ending: Callable[[], bool]
    ) -> None:
        self._cache = cache
        self._is_ending = is_ending
        self._examiner = examiner
        self._name = name
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._listeners = 0
        self.version = ""
        self.examined = ""
        self.is_gone = False
        self._files = 0  # at the last look
        self._lost_s = -_LOSS_S  # when files were lost

    async def listen(self) -> AsyncIterator[bytes]:
        """Events as they come: `version` now and after every change, a comment now and then, `gone` at the end."""
        self._listeners += 1
        if self._task is None or self._task.done():
            first = await self._look()
            self.is_gone, self.version, self._files = False, first.text, first.files
            self._task = asyncio.create_task(self._watch())
        told: tuple[str, str] = ("", "")
        try:
            while not self.is_gone and not self._is_ending():
                now = (self.version, self.examined)
                if now != told:
                    told = now
                    yield b"event: version\ndata: " + encode({"version": now[0], "examined": now[1]}) + b"\n\n"
                try:
                    async with asyncio.timeout(_BEAT_S), self._changed:
                        if (self.version, self.examined) == told and not self.is_gone:
                            await self._changed.wait()
                except TimeoutError:
                    yield b": still here\n\n"
            if self.is_gone:
                yield b"event: gone\ndata: {}\n\n"
        finally:
            self._listeners -= 1

    async def _look(self) -> Version:
        return await to_thread.run_sync(self._cache.look_at, self._name)

    async def _watch(self) -> None:
        while self._listeners and not self._is_ending():
            start = time.monotonic()
            try:
                seen = await self._look()
            except RunNotFoundError:
                self.is_gone = True
            else:
                if seen.files < self._files:
                    self._lost_s = start
                self._files = seen.files
                if start - self._lost_s < _LOSS_S:  # it may be on its way out: its last whole state stays in sight
                    await asyncio.sleep(_PAUSE_S)
                    continue
                known = self._examiner.poke(self._name, seen.rows)
                examined = f"{known.version}{'…' if known.is_under_way else ''}"
                if (seen.text, examined) == (self.version, self.examined):
                    await asyncio.sleep(max(_LOOK_S, 4 * (time.monotonic() - start)))
                    continue
                self.version, self.examined = seen.text, examined
            async with self._changed:
                self._changed.notify_all()
            if self.is_gone:
                return
            await asyncio.sleep(max(_PAUSE_S, 4 * (time.monotonic() - start)))
        async with self._changed:
            self._changed.notify_all()


class Watchers:
    """One watcher per run, shared by all who listen."""

    def __init__(self, cache: RunCache, examiner: BackgroundDiagnosis, is_ending: Callable[[], bool]) -> None:
        self._cache = cache
        self._examiner = examiner
        self._is_ending = is_ending
        self._by_run: dict[str, Watcher] = {}

    def of(self, name: str) -> Watcher:
        self._cache.place(name)
        return self._by_run.setdefault(name, Watcher(self._cache, self._examiner, name, self._is_ending))
