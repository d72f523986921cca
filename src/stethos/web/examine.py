"""Diagnoses runs while they are looked at, each in a process of its own.

A diagnosis of a large run takes seconds and memory that the server is not to
have. It is the very `stethos diagnose`, so what it finds is kept in the run
and shown by SQL, by the command line and here alike.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stethos.errors import ArchiveError, RunNotFoundError
from stethos.settings import clean_environment
from stethos.store.silences import read_silences
from stethos.web.output import output_of
from stethos.web.run_cache import RunCache
from stethos.wiring import command_line

_LEAST_PAUSE_S = 2.0
_PAUSE_TIMES = 4.0
_LIMIT_S = 600.0
_LARGEST_BYTES = 16 << 20
_QUIET_S, _MOST_WAIT_S, _LOOK_S = 1.0, 4.0, 0.1  # before the first diagnosis of a run


@dataclass(slots=True)
class Examination:
    """What is known about a run's health: the last diagnosis, of which version, and whether one is under way."""

    version: str = ""
    result: dict[str, Any] | None = None
    error: str = ""
    took_s: float = 0.0
    ended_s: float = field(default_factory=lambda: -1e9)
    task: asyncio.Task[None] | None = None

    @property
    def is_under_way(self) -> bool:
        return self.task is not None and not self.task.done()


class BackgroundDiagnosis:
    """Keeps the diagnosis of every run that is looked at up to date, one at a time."""

    def __init__(self, cache: RunCache) -> None:
        self._cache = cache
        self._known: dict[str, Examination] = {}
        self._turn = asyncio.Semaphore(1)

    def poke(self, name: str, version: str) -> Examination:
        """What is known; if the rows have changed since, and enough time has passed, look again in the background."""
        known = self._known.setdefault(name, Examination())
        pause_s = max(_LEAST_PAUSE_S, _PAUSE_TIMES * known.took_s)
        is_due = time.monotonic() - known.ended_s > pause_s
        if version != known.version and is_due and not known.is_under_way:
            known.task = asyncio.create_task(self._examine(name, version, known))
        return known

    def poke_next(self, rows: Sequence[dict[str, Any]]) -> None:
        """Diagnose one run of a list that has ended and was never diagnosed, unless another one is being diagnosed."""
        if any(one.is_under_way for one in self._known.values()):
            return
        for row in rows:
            is_wanted = row["is_known"] and row["state"] != "running" and row["health"]["state"] == "not diagnosed"
            if is_wanted and row["run"] not in self._known:
                self.poke(row["run"], self._cache.version(row["run"], with_findings=False))
                return

    def conclusions(self) -> dict[str, dict[str, Any]]:
        """What each run was last found to be, by name; a run of somebody else does not keep it."""
        return {name: one.result["conclusion"] for name, one in self._known.items() if one.result is not None}

    async def close(self) -> None:
        tasks = [one.task for one in self._known.values() if one.task is not None and not one.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_quiet(self) -> None:
        """Let a page that has just been opened have its panels first; the page of a live run never stops asking."""
        start = time.monotonic()
        while (waited_s := time.monotonic() - start) < _MOST_WAIT_S:
            if min(waited_s, self._cache.quiet_s()) >= _QUIET_S:
                return
            await asyncio.sleep(_LOOK_S)

    async def _examine(self, name: str, version: str, known: Examination) -> None:
        async with self._turn:
            if known.result is None:
                await self._until_quiet()
            start = time.monotonic()
            try:
                path = self._cache.place(name).path
            except RunNotFoundError:
                return
            words = (*command_line(), "diagnose", "-t", str(path), "--json")
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, env=clean_environment(), preexec_fn=_step_back, start_new_session=True,
            )  # fmt: skip
            try:
                out, err = await output_of(process, _LARGEST_BYTES, _LIMIT_S)
            except TimeoutError:
                out, err = b"", b"the diagnosis took too long"
            finally:
                known.took_s, known.ended_s, known.version = time.monotonic() - start, time.monotonic(), version
            if len(out) > _LARGEST_BYTES:
                known.error = f"the diagnosis says more than {_LARGEST_BYTES >> 20} MB"
            elif process.returncode in (0, 1) and out:
                known.result, known.error = json.loads(out), ""
            else:
                if process.returncode == ArchiveError.exit_code:  # the store may answer again
                    known.version = ""
                known.error = err.decode(errors="replace").strip().partition("\n")[0] or "the diagnosis failed"


def findings_of(cache: RunCache, name: str, known: Examination) -> dict[str, Any]:
    """The last diagnosis of a run, or the one kept in it, as `stethos diagnose --json` gives it; and its progress."""
    found = known.result
    if found is None:
        found = json.loads(cache.read(name, "findings"))
    silences = {key: one.as_dict() for key, one in read_silences(cache.place(name).path).items()}
    progress = {"is_under_way": known.is_under_way, "error": known.error, "took_s": known.took_s}
    return {"is_diagnosed": True, **found, "silences": silences, **progress}


def _step_back() -> None:
    """In the child: let trainings go first, and the server; further back it would not end beside a busy machine."""
    os.nice(5)
