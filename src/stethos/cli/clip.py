"""Clip the gradients of a live training from its next step on.

    stethos clip 1.0          clip their norm to 1.0 before every step
    stethos clip off          leave them alone again
    stethos clip              is anything clipped?

What the program clips itself it clips before. All optimizers that have stepped so far are meant; the change lasts as
long as the process, or until `stethos detach`.
"""

from __future__ import annotations

import argparse
from typing import Any

from stethos.cli.target import add_live_target, chosen_processes
from stethos.cli.text import number_text
from stethos.errors import UsageError
from stethos.live.ask import ask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("norm", nargs="?", metavar="NORM", help="the largest norm, or off; nothing: show")
    add_live_target(parser)
    parser.add_argument("--json", action="store_true", help="print one object per process")


def run(arguments: argparse.Namespace) -> int:
    wanted = _wanted(arguments.norm)
    replies = []
    for process in chosen_processes(arguments):
        reply = ask(process, "clip", **wanted)
        replies.append({"pid": process.pid, "rank": process.rank, **reply})
        if not arguments.json:
            now = f"clipped to a norm of {number_text(reply['clip'])}" if reply["clip"] else "not clipped"
            print(f"{process.title}  gradients are {now}")
    if arguments.json:
        from stethos.cli.jsontext import print_json

        print_json(replies)
    return 0


def _wanted(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    if text == "off":
        return {"norm": None}
    try:
        return {"norm": float(text)}
    except ValueError:
        raise UsageError(f"not a norm: {text!r}", hint="stethos clip 1.0, or stethos clip off") from None
