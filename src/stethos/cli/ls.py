"""List the runs, newest first.

Duration, steps, last loss, rows and what became of them, overhead and size of each. `--json` gives the
raw numbers of `Run.summary()`.
"""

from __future__ import annotations

import argparse

from stethos.cli.grid import Heading, show_grid
from stethos.cli.target import add_directory
from stethos.cli.text import bytes_text, clean, count_text, duration_text, number_text, share_text, time_text

_HEADINGS = (
    Heading("run"), Heading("state"), Heading("started", spare=1), Heading("duration", True, 2),
    Heading("processes", True, 7), Heading("steps", True), Heading("last loss", True), Heading("rows", True, 3),
    Heading("dropped", True, 5), Heading("lost", True, 4), Heading("overhead", True, 6), Heading("size", True, 8),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print one array of objects")


def run(arguments: argparse.Namespace) -> int:
    from stethos.settings import default_runs_dir
    from stethos.store.find import list_runs
    from stethos.store.run import Run

    directory = arguments.dir or default_runs_dir()
    summaries = []
    for place in list_runs(directory):
        with Run(place) as one:
            summaries.append(one.summary())
    if arguments.json:
        from stethos.cli.jsontext import print_json_rows

        print_json_rows(summaries)
        return 0
    if not summaries:
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
    show_grid(_HEADINGS, rows)
    return 0
