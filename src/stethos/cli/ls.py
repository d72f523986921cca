"""List the runs, newest first, and the processes that are alive.

Duration, steps, last loss, rows and what became of them, overhead and size of each run. Of each live process,
wherever its run is, its rank, its steps and how long ago the last one was: read from its recording, so that one
that hangs is listed too. `--json` gives the raw numbers of `Run.summary()`, with the live processes of each run.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from stethos.cli.grid import Heading, show_grid
from stethos.cli.target import add_directory
from stethos.cli.text import bytes_text, clean, count_text, duration_text, number_text, share_text, time_text

if TYPE_CHECKING:
    from stethos.live.registry import LiveProcess

_HEADINGS = (
    Heading("run"), Heading("state"), Heading("started", spare=1), Heading("duration", True, 2),
    Heading("processes", True, 7), Heading("steps", True), Heading("last loss", True), Heading("rows", True, 3),
    Heading("dropped", True, 5), Heading("lost", True, 4), Heading("overhead", True, 6), Heading("size", True, 8),
)  # fmt: skip

_LIVE_HEADINGS = (
    Heading("pid", True), Heading("run"), Heading("rank", True), Heading("steps", True), Heading("last step", True),
    Heading("alive", True, 1), Heading("agent", False, 3), Heading("host", False, 2),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print one array of objects")


def run(arguments: argparse.Namespace) -> int:
    from stethos.live.registry import live_processes
    from stethos.settings import default_runs_dir
    from stethos.store.find import list_runs
    from stethos.store.run import Run

    directory = arguments.dir or default_runs_dir()
    summaries = []
    for place in list_runs(directory):
        with Run(place) as one:
            summaries.append(one.summary())
    live = [_live_row(process) for process in live_processes(arguments.dir)]
    if arguments.json:
        from stethos.cli.jsontext import print_json_rows

        print_json_rows(
            {**summary, "live": [row for row in live if row["path"] == summary["path"]]} for summary in summaries
        )
        return 0
    if not summaries and not live:
        print(f"no runs in {clean(str(directory))}; record one with `stethos run train.py`")
        return 0
    rows = [
        [
            summary["run"], summary["state"], time_text(summary["started_ns"]), duration_text(summary["duration_s"]),
            count_text(summary["processes"]), count_text(summary["steps"]), number_text(summary["last_loss"]),
            count_text(summary["rows_stored"]), count_text(summary["rows_dropped"]), count_text(summary["rows_lost"]),
            share_text(summary["overhead_share"]), bytes_text(summary["size_bytes"]),
        ]
        for summary in summaries
    ]  # fmt: skip
    if rows:
        show_grid(_HEADINGS, rows)
    if live:
        print("\nalive now:" if rows else "alive now:")
        show_grid(_LIVE_HEADINGS, [_live_cells(row) for row in live])
    return 0


def _live_row(process: LiveProcess) -> dict[str, Any]:
    """A live process as its ring shows it."""
    from stethos.store.header import read_header

    header = read_header(process.place.ring())
    last_ns = header.counters.last_step_ns if header is not None else 0
    return {
        "pid": process.pid,
        "run": process.run,
        "path": str(process.run_dir),
        "process": process.process,
        "rank": process.rank,
        "world_size": process.world_size,
        "host": process.host,
        "steps": header.counters.steps if header is not None else None,
        "last_step_s": max(0.0, (time.time_ns() - last_ns) / 1e9) if last_ns else None,
        "alive_s": (time.time_ns() - process.since_ns) / 1e9 if process.since_ns else None,
        "has_agent": process.has_agent,
    }


def _live_cells(row: dict[str, Any]) -> list[str]:
    ago = f"{duration_text(row['last_step_s'])} ago" if row["last_step_s"] is not None else "-"
    return [
        str(row["pid"]), row["run"], "-" if row["rank"] is None else str(row["rank"]), count_text(row["steps"]), ago,
        duration_text(row["alive_s"]), "yes" if row["has_agent"] else "no", row["host"],
    ]  # fmt: skip
