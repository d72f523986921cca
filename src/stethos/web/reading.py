"""In a reading process: what pages show of a run, by the name of the job."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stethos.diagnose.diagnosis import Conclusion, Diagnosis
from stethos.diagnose.followup import completed
from stethos.diagnose.life import read_diagnosis
from stethos.export.prometheus import text
from stethos.record.border import version_of
from stethos.record.memory import return_freed_memory, trim_heaps
from stethos.record.place import RUN_FILE, RunPlace
from stethos.store.run import Run
from stethos.view.state import METRIC_RANGES
from stethos.web.compare import compare_runs
from stethos.web.encode import encode
from stethos.web.line_process import answer_lines
from stethos.web.panel import evaluate
from stethos.web.panels import PANELS
from stethos.web.query_process import SQL_TIMEOUT_S

PANEL_MEMORY_BYTES = 192 << 20
_OPEN_RUNS = 4
_VALUES_ROWS = 5_000
_ANSWER_BYTES = 128 << 20
_TRIM_EVERY_S = 1.0


def panel(run: Run, which: str, parameters: dict[str, str]) -> bytes:
    """One panel's numbers."""
    return encode({"panel": which, **evaluate(run, PANELS[which], **parameters).as_dict()})


def values(run: Run, sql: str) -> bytes:
    """What a parameter of a panel can be."""
    found = run.rows(sql, limit_rows=_VALUES_ROWS, timeout_s=SQL_TIMEOUT_S)
    return encode({"values": [row[0] for row in found.values], "is_cut": found.is_cut})


def metrics(run: Run) -> bytes:
    """The present state for Prometheus; on one line, as every answer is."""
    return json.dumps(text(run)).encode()


def ranges(run: Run) -> bytes:
    """The last, least and largest value of every metric."""
    return encode(METRIC_RANGES.ask(run).values)


def findings(run: Run) -> bytes:
    """The diagnosis that is kept in a run, with what came after each finding."""
    kept = read_diagnosis(run.path)
    found = completed(kept or Diagnosis(), run).as_dict()
    if kept is None:
        found["conclusion"] = asdict(Conclusion())
    return encode({"is_diagnosed": kept is not None, **found})


def compare(*runs: Run) -> bytes:
    """Every further run against the first."""
    return encode(compare_runs(runs))


JOBS: dict[str, Callable[..., bytes]] = {
    one.__name__: one for one in (panel, values, metrics, ranges, findings, compare)
}


class _OpenRuns:
    """The runs that were asked about last."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[object, ...], Run] = OrderedDict()
        self._trimmed_s = time.monotonic()

    def answer(self, job: dict[str, Any]) -> bytes:
        found = JOBS[job["job"]](*map(self._opened, job["runs"]), **job["given"])
        while len(self._runs) > _OPEN_RUNS:
            self._runs.popitem(last=False)[1].close()
        if time.monotonic() - self._trimmed_s > _TRIM_EVERY_S:  # what was read of a growing run leaves holes
            self._trimmed_s = time.monotonic()
            trim_heaps()
        return found

    def _opened(self, path: str) -> Run:
        key = (path, *version_of(Path(path) / RUN_FILE)[:1])  # another one may have taken its place
        run = self._runs.pop(key, None) or Run(RunPlace(Path(path)), memory_bytes=PANEL_MEMORY_BYTES)
        self._runs[key] = run
        return run


if __name__ == "__main__":
    return_freed_memory()
    import duckdb  # noqa: F401  # before the first question comes
    import pyarrow  # noqa: F401

    answer_lines(_OpenRuns().answer, _ANSWER_BYTES)
