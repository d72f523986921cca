"""The table of all runs: rows from their small files at once, numbers from their tables in the background."""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stethos.diagnose.diagnosis import Conclusion
from stethos.errors import StethosError
from stethos.record.place import RunPlace
from stethos.schema import RECORDED
from stethos.store.catalogue import overhead_share, run_row
from stethos.store.labels import read_labels
from stethos.store.run import Run
from stethos.view.finding import conclusion_of
from stethos.web.encode import encode
from stethos.web.kept_rows import KeptRows
from stethos.web.run_cache import RunCache
from stethos.web.version import findings_time_ns, version_of

_FIRST_S = 0.3  # for rows that are not known yet, where a page shows nothing until it has an answer
_BUDGET_S = 1.0  # and where it shows the last one meanwhile
_RECHECK_S = 120.0  # how often a run that is over is looked at again though none of its times changed
_KEEP_EVERY_S = 15.0
_MOST_SETTINGS = 60
_END_S = 20.0
_FIGURES = ("rounds", "steps", "metrics")


@dataclass(slots=True)
class _Known:
    """A row of the table, of which version of the run, and when that was looked at.

    `shown` is the row with what people have added; the same object as long as it says the same.
    """

    row: dict[str, Any]
    version: str
    looked_s: float
    is_measured: bool = False
    times: tuple[int, int] = (0, 0)  # of its directory and of its findings
    shown: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """The rows that were told last, each as JSON, and all of them with their version."""

    rows: list[dict[str, Any]]
    parts: list[bytes]
    version: str
    body: bytes


class RunTable:
    """Every run of a directory as a row; used by one thread at a time, with one more that measures.

    With `kept` what is known of runs that are over is remembered in that file until the next start; a row is taken
    from there only if the files of its run are as they were.
    """

    def __init__(self, cache: RunCache, kept: KeptRows | None = None) -> None:
        self._cache = cache
        self._kept = kept
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()
        self._wakes = threading.Event()
        self._worker: threading.Thread | None = None
        self._closing = threading.Event()
        self._answered = _Answer([], [], "", b"")

    def close(self) -> None:
        """Stop measuring and reading."""
        self._closing.set()
        self._wakes.set()
        self._cache.close()
        if self._worker is not None:
            self._worker.join(_END_S)
            self._keep()

    def rows(self, *, is_first: bool = False) -> list[dict[str, Any]]:
        """A row for every run; those that there was no time to look into have `is_known` false and come next time.

        With `is_first` somebody is waiting with nothing to look at, and less time is taken.
        """
        places = self._cache.places()
        until_s = time.monotonic() + (_FIRST_S if is_first else _BUDGET_S)
        rows = []
        for place in places:
            known = self._look(place, until_s)
            if known is None:
                rows.append({"run": place.name, "is_known": False})
                continue
            if known.shown is None:
                known.shown = {**known.row, **read_labels(place.path).as_dict()}
            rows.append(known.shown)
        with self._lock:
            for gone in self._known.keys() - {place.name for place in places}:
                del self._known[gone]
            is_wanted = any(not one.is_measured for one in self._known.values())
        if is_wanted:
            self._wake()
        return rows

    def learn(self, conclusions: Mapping[str, dict[str, Any]]) -> None:
        """Show what a diagnosis said of runs that do not keep it, such as copies from another machine."""
        with self._lock:
            for name, conclusion in conclusions.items():
                known = self._known.get(name)
                if known is not None and known.row.get("health", {}).get("state") == Conclusion().state:
                    known.row, known.shown = {**known.row, "health": conclusion}, None

    def answer(self, rows: list[dict[str, Any]], version: str) -> bytes:
        """The rows as JSON with their version; of a version that is known already only that it is the same."""
        before = self._answered
        if not before.body or [*map(id, before.rows)] != [*map(id, rows)]:
            known = dict(zip(map(id, before.rows), before.parts, strict=True))  # rows that say the same are the same
            parts = [known.get(id(row)) or encode(row) for row in rows]
            body = b"[" + b",".join(parts) + b"]"
            before = self._answered = _Answer(rows, parts, f"{zlib.crc32(body):08x}", body)
        now = before.version
        return (
            encode({"version": now}) if version == now else b'{"version":"%s","runs":%s}' % (now.encode(), before.body)
        )

    def _look(self, place: RunPlace, until_s: float) -> _Known | None:
        """What is known of a run, renewed where it may have changed; None if it is not known and there is no time."""
        known = self._known.get(place.name)
        now = time.monotonic()
        try:
            times = (os.stat(place.path).st_mtime_ns, findings_time_ns(place.path))
            if known is not None and known.times != times:
                known.shown = None  # labels lie in the directory, too
            if (
                known is not None
                and known.row["state"] != "running"
                and now - known.looked_s < _RECHECK_S
                and known.times == times
            ):
                return known
            if known is None and now > until_s and not self._is_remembered(place):
                return None
            version = version_of(place.path)
            if known is None:
                known = self._remembered(place, version, now)
            if known is None or known.version != version or known.row["state"] == "running":
                old = known.row if known is not None else {}
                known = _Known(_first_row(place, old), version, now)
            with self._lock:
                self._known[place.name] = known
            known.looked_s, known.times = now, times
        except (OSError, StethosError) as error:
            row = {"run": place.name, "is_known": False, "error": str(error)[:200]}
            return _Known(row, "", now, True, shown=row)
        return known

    def _is_remembered(self, place: RunPlace) -> bool:
        return self._kept is not None and place.name in self._kept

    def _remembered(self, place: RunPlace, version: str, now: float) -> _Known | None:
        """A row of the last start, if the run is as it was."""
        row = self._kept.find(place.name, version) if self._kept is not None else None
        return None if row is None else _Known(row, version, now, is_measured=True)

    def _keep(self) -> None:
        if self._kept is None:
            return
        with self._lock:
            over = {
                name: (one.version, one.row)
                for name, one in self._known.items()
                if one.is_measured and one.row.get("state") not in (None, "running")
            }
        self._kept.write(over)

    def _wake(self) -> None:
        if self._worker is None:
            self._worker = threading.Thread(target=self._measure, name="stethos-run-table", daemon=True)
            self._worker.start()
        self._wakes.set()

    def _measure(self) -> None:
        """In a thread: the numbers of one run after the other."""
        while not self._closing.is_set():
            self._wakes.wait()
            self._wakes.clear()
            with self._lock:
                waiting = [(name, one) for name, one in self._known.items() if not one.is_measured]
            kept_s = time.monotonic()
            for name, one in waiting:
                if self._closing.is_set():
                    return
                if time.monotonic() - kept_s > _KEEP_EVERY_S:
                    self._keep()
                    kept_s = time.monotonic()
                try:
                    found = self._figures(name, one.row)
                except (OSError, StethosError):
                    if self._closing.is_set():
                        return
                    found = {}
                with self._lock:
                    one.row = {**one.row, **found}
                    one.is_measured, one.shown = True, None
            if waiting:
                self._keep()

    def _figures(self, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
        if not any(row["tables"].get(table) for table in _FIGURES):
            return {"is_measured": True}
        metrics = {one: values for one, *values in json.loads(self._cache.read(name, "ranges"))}
        last = {one: values[0] for one, values in metrics.items()}
        return {
            "loss": last.get("rounds/loss", last.get("steps/loss")), "accuracy": last.get("rounds/accuracy"),
            "last_round": metrics.pop("rounds/round", [None, None, None])[2], "metrics": metrics, "is_measured": True,
        }  # fmt: skip


def _first_row(place: RunPlace, old: Mapping[str, Any]) -> dict[str, Any]:
    """What the small files of a run say; no table is read. Numbers of its last version stay until there are others."""
    run = Run(place)
    try:
        processes = run.processes()
        readers = run.readers()
        counts = dict.fromkeys((table.name for table in RECORDED.values()), 0)
        for reader in readers:
            for name, rows in reader.rows_by_table(run.examiner).items():
                counts[name] += rows
        row = run_row(place, processes, sum(counts.values()))
        share = overhead_share(readers)
    finally:
        run.close()
    kept = {name: old.get(name) for name in ("loss", "accuracy", "last_round", "metrics")}
    return {
        **row, **kept, "run": place.name, "is_known": True, "overhead_share": share, "is_measured": False,
        "health": asdict(conclusion_of(place.path)), "config": _config_of(processes), "tables": counts,
        "rows_missing": sum(one["rows_dropped"] + one["rows_lost"] for one in processes),
    }  # fmt: skip


def _config_of(processes: list[dict[str, Any]]) -> dict[str, Any]:
    """The hyperparameters by dotted name, of the first process that has some."""
    for one in processes:
        try:
            content = json.loads(one["config"] or "{}")
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict) and content:
            return dict(list(_flat("", content, 0).items())[:_MOST_SETTINGS])
    return {}


def _flat(prefix: str, content: Mapping[str, Any], depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping) and depth < 4:
            found |= _flat(f"{prefix}{name}.", value, depth + 1)
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, bool | int | float) else str(value)[:200]
    return found
