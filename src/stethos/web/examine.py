"""Diagnoses runs while they are looked at, each in a process of its own.

A diagnosis of a large run takes seconds and memory that the server is not to
have. It is the very `stethos diagnose`, so what it finds is kept in the run
and shown by SQL, by the command line and here alike.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from stethos.errors import QueryError, RunNotFoundError
from stethos.settings import clean_environment
from stethos.store.findings import read_findings
from stethos.web.shelf import Shelf

_LEAST_PAUSE_S = 2.0
_PAUSE_TIMES = 4.0
_LIMIT_S = 600.0
_JSON_COLUMNS = ("clients", "ranks", "layers", "evidence", "detail")


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


class Examiner:
    """Keeps the diagnosis of every run that is looked at up to date, one at a time."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
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

    async def close(self) -> None:
        tasks = [one.task for one in self._known.values() if one.task is not None and not one.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _examine(self, name: str, version: str, known: Examination) -> None:
        async with self._turn:
            start = time.monotonic()
            try:
                path = self._shelf.place(name).path
            except RunNotFoundError:
                return
            words = (sys.executable, "-m", "stethos.cli.main", "diagnose", "-t", str(path), "--json")
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, env=clean_environment(), preexec_fn=_step_back,
            )  # fmt: skip
            try:
                out, err = await asyncio.wait_for(process.communicate(), _LIMIT_S)
            except (TimeoutError, asyncio.CancelledError):
                process.kill()
                await process.wait()
                raise
            finally:
                known.took_s, known.ended_s, known.version = time.monotonic() - start, time.monotonic(), version
            if process.returncode in (0, 1):
                known.result, known.error = json.loads(out), ""
            else:
                known.error = err.decode(errors="replace").strip().partition("\n")[0] or "the diagnosis failed"


def findings_of(shelf: Shelf, name: str, known: Examination) -> dict[str, Any]:
    """The findings of a run: those of the last diagnosis, else those that were kept, with what is being done."""
    result = known.result or {}
    error = known.error
    try:
        findings = result["findings"] if result else kept_findings(shelf, name)
    except QueryError as trouble:  # damaged
        findings, error = [], trouble.message
    return {
        "findings": findings,
        "checked": result.get("checked", []),
        "not_checked": result.get("not_checked", []),
        "is_diagnosed": known.result is not None or (shelf.place(name).path / "findings.db").exists(),
        "is_under_way": known.is_under_way,
        "error": error,
        "took_s": known.took_s,
    }


def kept_findings(shelf: Shelf, name: str) -> list[dict[str, Any]]:
    """The findings kept in a run, consequences below their causes, as a diagnosis gives them."""
    rows = read_findings(shelf.place(name).path)
    by_number: dict[int, dict[str, Any]] = {}
    for row in rows:
        texts = {column: json.loads(row[column] or "[]") for column in _JSON_COLUMNS}
        by_number[row["finding"]] = {**row, **texts, "open": row["state"] == "open", "consequences": []}
    roots: list[dict[str, Any]] = []
    for row in by_number.values():
        cause = by_number.get(row["cause"] or 0)
        (cause["consequences"] if cause else roots).append(row)
    order = {"error": 0, "warning": 1}
    return sorted(roots, key=lambda row: (not row["open"], order.get(row["severity"], 2)))


def _step_back() -> None:
    """In the child: let trainings go first."""
    os.nice(10)
