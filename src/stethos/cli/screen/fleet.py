"""The diagnosis of a whole archive on a terminal: the runs, and what they have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from stethos.cli.screen.grid import Heading, show_grid
from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.progress import show_progress
from stethos.cli.screen.text import clean, count_text, number_text

if TYPE_CHECKING:
    from stethos.archive.fleet_diagnosis import FleetDiagnosis

_SHOWN = 10
_STYLES = {"red": "red", "amber": "yellow", "green": "", "grey": "dim"}


def show_fleet(address: str, on: str | None, task_timeout_s: float, *, as_json: bool) -> int:
    """Diagnose every run and print it; the exit status is 1 if a run has a problem."""
    from stethos.archive.api import archive

    found = archive(address).diagnose(on=on, timeout_s=task_timeout_s, tell=_tell)
    if as_json:
        print_json(asdict(found))
    else:
        _print(found)
    return 1 if found.failed or any(row["problems"] for row in found.runs) else 0


def _print(found: FleetDiagnosis) -> None:
    rows = [[row["run"], count_text(row["problems"]), row["verdict"]] for row in found.runs]
    show_grid(
        (Heading("run"), Heading("problems", True), Heading("what is wrong")), rows,
        [_STYLES.get(row["colour"], "") for row in found.runs],
    )  # fmt: skip
    for run, error in found.failed:
        print(f"{clean(run)}: not read: {clean(error)}")
    _part("detectors by the number of runs in which they fire", ("code", "detector", "runs"), found.detectors)
    _part("clients by the number of runs in which they are accused", ("client", "runs"), found.clients)
    slowest = [(host, number_text(ms), runs) for host, ms, runs in found.hosts]
    _part("hosts by the median of their steps", ("host", "step_ms", "runs"), slowest)


def _part(title: str, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        print(f"\n{title}")
        headings = [Heading(name, name in ("runs", "step_ms")) for name in names]
        show_grid(headings, [[str(value) for value in row] for row in rows[:_SHOWN]])
        if len(rows) > _SHOWN:
            print(f"and {len(rows) - _SHOWN} more: --json")


def _tell(done: int, total: int) -> None:
    show_progress(f"{done} of {total} runs" if done < total else "")
