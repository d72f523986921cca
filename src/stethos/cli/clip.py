"""Clip the gradients of a live training from its next step on.

    stethos clip 1.0          clip their norm to 1.0 before every step
    stethos clip off          leave them alone again
    stethos clip              show whether anything is clipped

The program's own clipping happens first. The change applies to all optimizers that have stepped so far and lasts as
long as the process, or until `stethos detach`. In a distributed job every rank begins at the same step, so they stay in
sync; `-t rank:3` changes one rank only.
"""

from __future__ import annotations

import argparse
from typing import Any

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import number_text
from stethos.cli.task.steering import add_steering, steer
from stethos.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "norm", nargs="?", metavar="NORM", help="the largest norm, or off; without it: show what is clipped"
    )
    add_steering(parser)


def run(arguments: argparse.Namespace) -> int:
    wanted = _wanted(arguments.norm)
    answers, status = steer(arguments, "clip", bool(wanted), **wanted)
    if arguments.json:
        print_json([{"pid": process.pid, "rank": process.rank, **reply} for process, reply in answers])
        return status
    for process, reply in answers:
        now = f"clipped to a norm of {number_text(reply['clip'])}" if reply["clip"] else "not clipped"
        print(f"{process.title}  gradients are {now}")
    return status


def _wanted(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    if text == "off":
        return {"norm": None}
    try:
        return {"norm": float(text)}
    except ValueError:
        raise UsageError(f"not a norm: {text!r}", hint="say `stethos clip 1.0` or `stethos clip off`") from None
