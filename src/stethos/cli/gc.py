"""Collect garbage in a live training, and give cached device memory back.

It runs at the next step. Gradients and everything else in use are left alone.
"""

from __future__ import annotations

import argparse

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import bytes_text, count_text
from stethos.cli.task.target import add_live_target, chosen_processes
from stethos.live.ask import ask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_live_target(parser)
    parser.add_argument("--json", action="store_true", help="print one object per process")


def run(arguments: argparse.Namespace) -> int:
    replies = []
    for process in chosen_processes(arguments):
        reply = ask(process, "gc")
        replies.append({"pid": process.pid, "rank": process.rank, **reply})
        if not arguments.json:
            freed = reply["rss_before"] - reply["rss_after"]
            device = f", {bytes_text(reply['cuda_freed'])} of device memory" if reply["cuda_freed"] else ""
            print(
                f"{process.title}  {count_text(reply['collected'])} objects collected, "
                f"{bytes_text(max(0, freed))} given back{device}; {bytes_text(reply['rss_after'])} resident"
            )
    if arguments.json:
        print_json(replies)
    return 0
