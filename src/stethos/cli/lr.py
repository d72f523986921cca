"""Show or change the learning rate of a live training.

    stethos lr                the rates of all parameter groups
    stethos lr x0.1           multiply them
    stethos lr 0.01           set them
    stethos lr undo           take the last change back

A change takes effect in the step before which it happens. A scheduler of the program may set the rate again.
"""

from __future__ import annotations

import argparse
import sys

from stethos.cli.target import add_live_target, chosen_processes
from stethos.cli.text import number_text
from stethos.live.ask import ask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("change", nargs="?", default="", metavar="CHANGE", help="x0.1, 0.01 or undo; nothing: show")
    add_live_target(parser)
    parser.add_argument("--json", action="store_true", help="print one object per process")


def run(arguments: argparse.Namespace) -> int:
    replies = []
    for process in chosen_processes(arguments):
        reply = ask(process, "lr", change=arguments.change)
        replies.append({"pid": process.pid, "rank": process.rank, **reply})
        if arguments.json:
            continue
        for group in reply["groups"]:
            decay = f"  weight_decay {number_text(group['weight_decay'])}" if group["weight_decay"] else ""
            print(f"{process.title}  {group['class']}  group {group['group']}  lr {number_text(group['lr'])}{decay}")
        if not reply["groups"]:
            print(f"{process.title}: no optimizer has stepped yet")
        if reply["changed"] and any(group["has_scheduler"] for group in reply["groups"]):
            sys.stderr.write("stethos: the program has a learning-rate scheduler, which may set it again\n")
    if arguments.json:
        from stethos.cli.jsontext import print_json

        print_json(replies)
    return 0
