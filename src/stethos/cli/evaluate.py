"""Run code inside a live training: at its next step, with its own names.

    stethos eval "optimizer.param_groups[0]['lr']"
    stethos eval - < look.py

It runs when the gradients are ready and before the optimizer acts, and sees the globals of the program and
the locals of the training function. If no step comes within 5 s, as in a hang, it runs at once in a
thread beside the training, and says so. Its output and the value of its last expression come back;
the exit status is 1 if it raised. Each call is written to the table `audit` before it runs.

An assignment to a global of the program, or to a local of the training function, takes effect there.
Names of loops and imports, and new names, belong to the code alone.

    stethos all eval "trainer.current_step"

With `all` it runs on every rank at the same step, if all of them make steps, and shows the result of each. Collectives
are allowed only this way: on a single rank they are refused, because that rank would wait forever.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean, count_text
from stethos.cli.task.target import add_live_target, chosen_processes
from stethos.cli.task.value import seconds
from stethos.errors import LiveError, StethosError, UsageError
from stethos.live.ask import ask
from stethos.live.target import take_apart

if TYPE_CHECKING:
    from stethos.live.registry import LiveProcess

WAIT_S = 5.0
LIMIT_S = 10.0
_MOST_S = 3600.0
_SPARE_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "code", nargs="?", metavar="CODE", help="statements or an expression; `-` or nothing reads stdin"
    )
    add_live_target(parser)
    add_waiting(parser)
    parser.add_argument("--json", action="store_true", help="print one object: value, output, error, where it ran")


def add_waiting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--now", action="store_true", help="do not wait for a step")
    parser.add_argument(
        "--wait",
        type=_within_an_hour,
        default=WAIT_S,
        metavar="S",
        help=f"how long to wait for a step (default: {WAIT_S:g})",
    )
    parser.add_argument(
        "--timeout",
        type=_within_an_hour,
        default=LIMIT_S,
        metavar="S",
        help=f"interrupt the code after S seconds (default: {LIMIT_S:g})",
    )


def run(arguments: argparse.Namespace) -> int:
    code = _code_of(arguments)
    processes = chosen_processes(arguments)
    if len(processes) > 1:
        return _run_on_all(processes, code, arguments)
    replies = []
    for process in processes:
        reply = ask(process, "eval", **request_for(arguments, code))
        replies.append({"pid": process.pid, "rank": process.rank, **reply})
        if not arguments.json:
            show_reply(reply)
            _note_others(process, arguments)
    if arguments.json:
        print_json(replies[0])
    return 1 if any(reply["error"] for reply in replies) else 0


def _note_others(process: LiveProcess, arguments: argparse.Namespace) -> None:
    """Who did not name a rank is told that there are more."""
    wanted = take_apart(arguments.target)
    is_named = wanted.rank is not None or wanted.is_all or (wanted.run or "").isdigit()
    if process.rank is not None and (process.world_size or 1) > 1 and not is_named:
        _say(f"this was rank {process.rank} of {process.world_size}; `stethos all eval` runs it on every rank")


def _run_on_all(processes: list[LiveProcess], code: str, arguments: argparse.Namespace) -> int:
    """On every rank at the same step; where one of them makes no steps, at once on each."""
    from stethos.live.all_ranks import ask_all, meeting_step, missing_ranks
    from stethos.live.sync import collectives_in
    from stethos.record.place import RunPlace

    step = None if arguments.now else meeting_step(processes)
    missing = missing_ranks(RunPlace(processes[0].run_dir), processes)
    called = collectives_in(code)
    if called and (step is None or missing):
        raise LiveError(
            f"{called[0]} is not begun: not all ranks make steps, and those that do would wait forever",
            hint="see where they are: `stethos all backtrace`",
        )
    together = {} if step is None else {"at_step": step, "together": True}
    request = request_for(arguments, code)
    answers = ask_all(processes, "eval", **{**request, **together})
    rows: list[dict[str, Any]] = []
    for process, answer in zip(processes, answers, strict=True):
        row: dict[str, Any] = {"pid": process.pid, "rank": process.rank, "host": process.host}
        if isinstance(answer, StethosError):
            rows.append({**row, "error": {"type": "Refused", "message": str(answer)}})
        else:
            rows.append({**row, **answer})
        if not arguments.json:
            at = "" if isinstance(answer, StethosError) else f" (step {count_text(answer.get('step'))})"
            sys.stdout.write(f"{process.title}{at}:\n")
            sys.stdout.flush()
            if isinstance(answer, StethosError):
                sys.stderr.write(clean(str(answer), keep_lines=True) + "\n")
            else:
                show_reply(answer)
    if arguments.json:
        print_json(rows)
    for rank, why in missing.items():
        _say(f"rank {rank} is missing: it {why}")
    return 1 if missing or any(row.get("error") for row in rows) else 0


def request_for(arguments: argparse.Namespace, code: str) -> dict[str, Any]:
    """What the agent is asked, and how long to wait for its answer."""
    return {
        "code": code,
        "now": arguments.now,
        "wait_s": arguments.wait,
        "limit_s": arguments.timeout,
        "timeout_s": arguments.wait + arguments.timeout + _SPARE_S,
    }


def show_reply(reply: dict[str, Any], *, is_terse: bool = False) -> None:
    """Output and value on stdout; the traceback, and what is to be known about the circumstances, on stderr.

    In a terminal code that came to nothing is said to have run, unless that goes without saying (`is_terse`).
    """
    output = clean(reply["output"], keep_lines=True)
    sys.stdout.write(output if not output or output.endswith("\n") else output + "\n")
    if reply["value"] is not None:
        sys.stdout.write(clean(reply["value"], keep_lines=True) + "\n")
    sys.stdout.flush()
    if not output and reply["value"] is None and not reply["error"] and not is_terse and sys.stderr.isatty():
        _say(f"it ran{_at(reply)}, printed nothing and has no value")
    if reply["dropped_chars"]:
        _say(f"the output was cut: {count_text(reply['dropped_chars'])} more characters were printed")
    if reply["where"] == "thread" and reply.get("why") and not reply["why"].startswith("asked"):
        _say(f"{reply['why']}: it ran in a separate thread")
    for note in reply["notes"]:
        _say(note)
    error = reply["error"]
    if error:
        if error["type"] in ("TimeLimit", "SystemExit", "Blocked", "Interrupted"):
            _say(error["message"])
        sys.stderr.write(clean(error["traceback"], keep_lines=True))


def _at(reply: dict[str, Any]) -> str:
    return f" at step {count_text(reply.get('step'))}" if reply["where"] == "step" else ""


def _say(text: str) -> None:
    sys.stderr.write(f"stethos: {clean(text)}\n")


def _code_of(arguments: argparse.Namespace) -> str:
    if arguments.code in (None, "-"):
        if arguments.code is None and sys.stdin.isatty():
            raise UsageError("no code given", hint='try `stethos eval "model"`')
        return sys.stdin.read()
    return str(arguments.code)


def _within_an_hour(text: str) -> float:
    return seconds(text, _MOST_S)
