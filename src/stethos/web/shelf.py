"""The directory of runs that is shown: which there are, opened ones, and answers that still hold."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stethos.errors import RunNotFoundError
from stethos.record.place import RunPlace
from stethos.schema import RECORDED
from stethos.store.catalogue import overhead_share, run_row
from stethos.store.find import list_runs
from stethos.store.findings import read_findings
from stethos.store.run import Run
from stethos.web.version import version_of

_OPEN_RUNS = 4
_CACHED_BYTES = 48 << 20
_SUMMARY_BUDGET_S = 0.8
PANEL_MEMORY_BYTES = 192 << 20
_LAST = (
    "SELECT max(round), arg_max(loss, t_ns), arg_max(accuracy, t_ns) FROM rounds",
    "SELECT NULL, arg_max(loss, t_ns), NULL FROM steps",
)


class Desk:
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


class Shelf:
    """Everything below one directory. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._desks: OrderedDict[str, Desk] = OrderedDict()
        self._answers: OrderedDict[tuple[str, ...], bytes] = OrderedDict()
        self._size = 0
        self._summaries: dict[str, tuple[str, dict[str, Any]]] = {}

    def places(self) -> list[RunPlace]:
        """Every run, newest first; links that lead out of the directory are left out."""
        root = self.directory.resolve()
        return [place for place in list_runs(self.directory) if place.path.resolve().parent == root]

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

    def desk(self, name: str) -> Desk:
        """The run, opened; only a few stay so."""
        place = self.place(name)
        closing = []
        with self._lock:
            desk = self._desks.pop(name, None) or Desk(place)
            self._desks[name] = desk
            while len(self._desks) > _OPEN_RUNS:
                closing.append(self._desks.popitem(last=False)[1])
        for old in closing:
            old.close()
        return desk

    def answer(self, name: str, key: tuple[str, ...], make: Callable[[Run], bytes]) -> bytes:
        """What `make` says about a run, or what it said when the run's files were the same as now."""
        full = (name, self.version(name), *key)
        known = self._known(full)
        if known is not None:
            return known
        desk = self.desk(name)
        with desk.lock:
            known = self._known(full)  # somebody else may have asked the same meanwhile
            if known is None:
                known = make(desk.run())
                self._keep(full, known)
        return known

    def summaries(self) -> list[dict[str, Any]]:
        """A row for every run; those that there was no time to look into have `is_known` false and come next time."""
        deadline = time.monotonic() + _SUMMARY_BUDGET_S
        rows = []
        for place in self.places():
            try:
                version = version_of(place.path)
            except OSError:
                continue
            kept = self._summaries.get(place.name)
            if kept is not None and kept[0] == version and kept[1]["state"] != "running":
                rows.append(kept[1])
            elif time.monotonic() < deadline or not rows:
                row = self._summary(place)
                self._summaries[place.name] = (version, row)
                rows.append(row)
            else:
                rows.append(kept[1] if kept else {"run": place.name, "is_known": False})
        return rows

    def _summary(self, place: RunPlace) -> dict[str, Any]:
        desk = self.desk(place.name)
        with desk.lock:
            run = desk.run()
            processes = run.processes()
            counts = dict.fromkeys((table.name for table in RECORDED.values()), 0)
            for reader in run.readers():
                for name, rows in reader.rows_by_table(run.examiner).items():
                    counts[name] += rows
            row = run_row(place, processes, sum(counts.values()))
            last: tuple[Any, ...] = (None, None, None)
            for table, sql in zip(("rounds", "steps"), _LAST, strict=True):
                if counts[table]:
                    last = run.rows(sql).values[0]
                    break
            share = overhead_share([reader.counters for reader in run.readers() if reader.counters])
        return {
            **row, "run": place.name, "title": row["run"], "is_known": True, "last_round": last[0], "loss": last[1],
            "accuracy": last[2], "overhead_share": share, "health": _health(place.path),
            "rows_missing": sum(one["rows_dropped"] + one["rows_lost"] for one in processes), "tables": counts,
        }  # fmt: skip

    def _known(self, key: tuple[str, ...]) -> bytes | None:
        with self._lock:
            found = self._answers.get(key)
            if found is not None:
                self._answers.move_to_end(key)
            return found

    def _keep(self, key: tuple[str, ...], answer: bytes) -> None:
        with self._lock:
            self._answers[key] = answer
            self._size += len(answer)
            while self._size > _CACHED_BYTES:
                self._size -= len(self._answers.popitem(last=False)[1])

    def _forget(self, name: str) -> None:
        with self._lock:
            desk = self._desks.pop(name, None)
        if desk is not None:
            desk.close()


def _health(path: Path) -> dict[str, int] | None:
    """Open findings by severity; None if nobody has looked yet."""
    rows = read_findings(path)
    if not rows and not (path / "findings.db").exists():
        return None
    health = {"error": 0, "warning": 0, "info": 0}
    for row in rows:
        if row["state"] == "open" and row["cause"] is None:
            health[row["severity"]] = health.get(row["severity"], 0) + 1
    return health
