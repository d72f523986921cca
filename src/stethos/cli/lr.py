"""Show or change the learning rate of a live training.

    stethos lr                the rates of all parameter groups
    stethos lr x0.1           multiply them
    stethos lr 0.01           set them
    stethos lr undo           take the last change back

A change takes effect at the next step. A scheduler of the program may set the rate again. In a distributed job every
rank makes it at the same step, so they stay in sync; `-t rank:3` changes one rank only.
"""

from __future__ import annotations

import argparse
import sys

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import number_text
from stethos.cli.task.steering import add_steering, steer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "change", nargs="?", default="", metavar="CHANGE", help="x0.1, 0.01 or undo; without it: show the rates"
    )
    add_steering(parser)


def run(arguments: argparse.Namespace) -> int:
    answers, status = steer(arguments, "lr", bool(arguments.change), change=arguments.change)
    if arguments.json:
        print_json([{"pid": process.pid, "rank": process.rank, **reply} for process, reply in answers])
        return status
    for process, reply in answers:
        for group in reply["groups"]:
            decay = f"  weight_decay {number_text(group['weight_decay'])}" if group["weight_decay"] else ""
            was = f" (was {number_text(group['was'])})" if group.get("was", group["lr"]) != group["lr"] else ""
            print(
                f"{process.title}  {group['class']}  group {group['group']}  lr {number_text(group['lr'])}{was}{decay}"
            )
        if not reply["groups"]:
            print(f"{process.title}: no optimizer has stepped yet")
    if any(reply["changed"] and any(group["has_scheduler"] for group in reply["groups"]) for _, reply in answers):
        sys.stderr.write("stethos: the program has a learning-rate scheduler, which may set it again\n")
    return status
