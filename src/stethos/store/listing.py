"""All runs of a directory: `stethos.runs()`."""

from __future__ import annotations

from pathlib import Path

from stethos.settings import default_runs_dir
from stethos.store.find import list_runs
from stethos.store.html import table_html
from stethos.store.run import Run

_SHOWN = ("run", "state", "steps", "last_loss", "duration_s", "size_bytes")


class RunList(list[Run]):
    """Runs, newest first; a table in a notebook."""

    def _repr_html_(self) -> str:
        summaries = [one.summary() for one in self]
        return table_html(_SHOWN, ([one[name] for name in _SHOWN] for one in summaries), f"{len(self)} runs")


def runs(directory: str | Path | None = None) -> RunList:
    """The runs of a directory, newest first; without one those of ./runs."""
    return RunList(Run(place) for place in list_runs(default_runs_dir() if directory is None else Path(directory)))
