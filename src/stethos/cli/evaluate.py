"""Run code inside a live training: at its next step, with its own names.

    stethos eval "optimizer.param_groups[0]['lr']"
    stethos eval - < look.py

It runs when the gradients are ready and before the optimizer acts, and sees the globals of the program and
the locals of the function that trains. If no step comes within 5 s, as in a hang, it runs at once in a
thread beside the training, and says so. What it prints and the value of its last expression come back;
the exit status is 1 if it raised. Each call is written to the table `audit` before it runs.

An assignment to a global of the program, or to a local of the training function, takes effect there.
Names of loops and imports, and new names, belong to the code alone.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from stethos.cli.target import add_live_target, chosen_processes
from stethos.cli.text import clean, count_text
from stethos.errors import UsageError
from stethos.live.ask import ask

WAIT_S = 5.0
LIMIT_S = 10.0
_SPARE_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", nargs="?", metavar="CODE", help="statements or an expression; `-` or nothing reads stdin")  # fmt: skip  # noqa: E501
    add_live_target(parser)
    add_waiting(parser)
    parser.add_argument("--json", action="store_true", help="print one object: value, output, error, where it ran")


def add_waiting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--now", action="store_true", help="do not wait for a step")
    parser.add_argument("--wait", type=seconds, default=WAIT_S, metavar="S", help=f"how long to wait for a step (default: {WAIT_S:g})")  # fmt: skip  # noqa: E501
    parser.add_argument("--timeout", type=seconds, default=LIMIT_S, metavar="S", help=f"interrupt the code after S seconds (default: {LIMIT_S:g})")  # fmt: skip  # noqa: E501


def run(arguments: argparse.Namespace) -> int:
    code = _code_of(arguments)
    processes = chosen_processes(arguments)
    replies = []
    for process in processes:
        reply = ask(process, "eval", **request_for(arguments, code))
        replies.append({"pid": process.pid, "rank": process.rank, **reply})
        if not arguments.json:
            if len(processes) > 1:
                sys.stdout.write(f"{process.title}:\n")
            show_reply(reply)
    if arguments.json:
        from stethos.cli.jsontext import print_json

        print_json(replies if len(processes) > 1 else replies[0])
    return 1 if any(reply["error"] for reply in replies) else 0


def request_for(arguments: argparse.Namespace, code: str) -> dict[str, Any]:
    """What the agent is asked, and how long to wait for its answer."""
    return {
        "code": code,
        "now": arguments.now,
        "wait_s": arguments.wait,
        "limit_s": arguments.timeout,
        "timeout_s": arguments.wait + arguments.timeout + _SPARE_S,
    }


def show_reply(reply: dict[str, Any]) -> None:
    """Output and value on stdout; the traceback, and what is to be known about the circumstances, on stderr."""
    output = clean(reply["output"], keep_lines=True)
    sys.stdout.write(output if not output or output.endswith("\n") else output + "\n")
    if reply["value"] is not None:
        sys.stdout.write(clean(reply["value"], keep_lines=True) + "\n")
    sys.stdout.flush()
    if reply["dropped_chars"]:
        _say(f"the output was cut: {count_text(reply['dropped_chars'])} more characters were printed")
    if reply["where"] == "thread" and reply.get("why") and not reply["why"].startswith("asked"):
        _say(f"{reply['why']}: it ran in a thread beside the training")
    for note in reply["notes"]:
        _say(note)
    error = reply["error"]
    if error:
        if error["type"] in ("TimeLimit", "SystemExit", "Blocked", "Interrupted"):
            _say(error["message"])
        sys.stderr.write(clean(error["traceback"], keep_lines=True))


def _say(text: str) -> None:
    sys.stderr.write(f"stethos: {clean(text)}\n")


def _code_of(arguments: argparse.Namespace) -> str:
    if arguments.code in (None, "-"):
        if arguments.code is None and sys.stdin.isatty():
            raise UsageError("no code given", hint='try `stethos eval "model"`')
        return sys.stdin.read()
    return str(arguments.code)


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError("a time is more than 0 and at most 3600 seconds")
    return value
