"""List the runs and the processes that are alive.

Runs are listed newest first. For each run: what its last diagnosis found, duration, steps, last loss, rows, overhead
and size. For each live process, wherever its run is: its rank, its steps and how long ago the last one was. All of it
is read from the recording, so a process that hangs is listed too. `--json` gives the raw numbers of `Run.summary()`,
with the conclusion of the last diagnosis and the live processes of each run.

    stethos ls s3://bucket/path       the runs of an archive, with their last values and hyperparameters
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.grid import Heading, show_grid, without_empty
from stethos.cli.screen.jsontext import print_json_rows
from stethos.cli.screen.text import bytes_text, clean, count_text, duration_text, number_text, share_text, time_text
from stethos.cli.task.target import add_directory
from stethos.errors import StethosError

if TYPE_CHECKING:
    from stethos.live.registry import LiveProcess

_HEADINGS = (
    Heading("run"), Heading("state"), Heading("what is wrong"), Heading("started", spare=1),
    Heading("duration", True, 2), Heading("processes", True, 7), Heading("steps", True), Heading("last loss", True),
    Heading("rows", True, 3),
    Heading("dropped", True, 5), Heading("lost", True, 4), Heading("overhead", True, 6), Heading("size", True, 8),
)  # fmt: skip

_LIVE_HEADINGS = (
    Heading("pid", True), Heading("run"), Heading("rank", True), Heading("steps", True), Heading("last step", True),
    Heading("alive", True, 1), Heading("agent", False, 3), Heading("host", False, 2),
    Heading("in"),
)  # fmt: skip

_ARCHIVE_HEADINGS = (
    Heading("run"), Heading("state"), Heading("what is wrong"), Heading("started", spare=1),
    Heading("duration", True, 2), Heading("processes", True, 7), Heading("steps", True), Heading("last loss", True),
    Heading("rows", True, 3), Heading("size", True, 8), Heading("last values", spare=5),
    Heading("hyperparameters", spare=4),
)  # fmt: skip
_NESTED = ("hyperparameters", "last_values", "findings", "files")

_STYLES = {"red": "red", "amber": "yellow", "green": "", "grey": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archive", nargs="?", metavar="ADDRESS", help="an archive: s3://BUCKET/PATH or its directory")
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print one array of objects")


def run(arguments: argparse.Namespace) -> int:
    if arguments.archive is not None:
        return _list_archive(arguments)
    from stethos.live.registry import live_processes
    from stethos.settings import default_runs_dir
    from stethos.store.find import list_runs
    from stethos.store.run import Run
    from stethos.view.finding import conclusion_of

    directory = arguments.dir or default_runs_dir()
    summaries = []
    for place in list_runs(directory):
        try:
            with Run(place) as one:
                summaries.append({**one.summary(), "conclusion": asdict(conclusion_of(place.path))})
        except StethosError as error:  # one that cannot be read hides no other
            sys.stderr.write(f"{clean(place.name)} cannot be read: {clean(error.message)}\n")
    live = [_live_row(process) for process in live_processes(arguments.dir)]
    if arguments.json:
        print_json_rows(
            {**summary, "live": [row for row in live if row["path"] == summary["path"]]} for summary in summaries
        )
        return 0
    if not summaries and not live:
        print(f"no runs in {clean(str(directory))}; record one with `stethos run train.py`")
        return 0
    rows = [
        [
            summary["run"], summary["state"], summary["conclusion"]["text"],
            time_text(summary["started_ns"]), duration_text(summary["duration_s"]),
            count_text(summary["processes"]), count_text(summary["steps"]), number_text(summary["last_loss"]),
            count_text(summary["rows_stored"]), count_text(summary["rows_dropped"]), count_text(summary["rows_lost"]),
            share_text(summary["overhead_share"]), bytes_text(summary["size_bytes"]),
        ]
        for summary in summaries
    ]  # fmt: skip
    if rows:
        show_grid(_HEADINGS, rows, [_STYLES[summary["conclusion"]["colour"]] for summary in summaries])
    if live:
        print("\nalive now:" if rows else "alive now:")
        headings, cells = without_empty(_LIVE_HEADINGS, [_live_cells(row, directory) for row in live])
        show_grid(headings, cells)
    return 0


def _list_archive(arguments: argparse.Namespace) -> int:
    from stethos.archive.api import archive
    from stethos.archive.catalogue import nested

    rows = archive(arguments.archive).runs()
    if arguments.json:
        print_json_rows({**row, **{name: nested(row[name]) for name in _NESTED}} for row in rows)
        return 0
    cells = [
        [
            row["run"], row["state"] or "-", row["verdict"] or "-", time_text(row["started_ns"]),
            duration_text(row["duration_s"]), count_text(row["processes"]), count_text(row["steps"]),
            number_text(row["last_loss"]), count_text(row["rows_stored"]), bytes_text(row["size_bytes"] or 0),
            _pairs(nested(row["last_values"])), _pairs(nested(row["hyperparameters"])),
        ]
        for row in rows
    ]  # fmt: skip
    if not rows:
        print("no runs in this archive")
        return 0
    headings, shown = without_empty(_ARCHIVE_HEADINGS, cells)
    show_grid(headings, shown, [_STYLES.get(row["colour"], "") for row in rows])
    return 0


def _pairs(found: Any) -> str:
    """Names and values in few words."""
    pairs = list(found.items())[:6] if isinstance(found, dict) else []
    return " ".join(f"{name}={number_text(v) if isinstance(v, float) else v}" for name, v in pairs)


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


def _live_cells(row: dict[str, Any], directory: Path) -> list[str]:
    place = Path(row["path"]).parent
    ago = f"{duration_text(row['last_step_s'])} ago" if row["last_step_s"] is not None else "-"
    return [
        str(row["pid"]), row["run"], "-" if row["rank"] is None else str(row["rank"]), count_text(row["steps"]), ago,
        duration_text(row["alive_s"]), "yes" if row["has_agent"] else "no", row["host"],
        "" if place.resolve() == directory.resolve() else str(place),
    ]  # fmt: skip
