"""Which processes a small act (`lr`, `clip`) is about, and having all ranks do it at the same step.

Ranks that train one model hold equal parameters only as long as each of them does the same in the same step.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.text import clean
from stethos.cli.task.target import add_live_target, live_target
from stethos.errors import LiveError, StethosError
from stethos.live.ask import ask

if TYPE_CHECKING:
    from stethos.live.registry import LiveProcess

_WAIT_FOR_STEP_S = 100.0
_SPARE_S = 10.0
Replies = list[tuple["LiveProcess", dict[str, Any]]]


def add_steering(parser: argparse.ArgumentParser) -> None:
    add_live_target(parser)
    parser.add_argument(
        "--at-step",
        type=_step,
        metavar="N",
        help="act at this step, on each machine of a job that spans several; "
        "default: a step that no rank has reached yet",
    )
    parser.add_argument("--json", action="store_true", help="print one object per process")


def steer(arguments: argparse.Namespace, op: str, is_change: bool, **request: Any) -> tuple[Replies, int]:
    """What each process answered, and the exit status. Of a job with ranks all are meant, unless one was named.

    A change happens at the same step on all of them. It is refused where that cannot be: where a rank makes no steps,
    or is on another machine and no step was given.
    """
    target = live_target(arguments)
    is_named = target.pid is not None or target.wanted.rank is not None
    ranks = [one for one in target.processes if one.rank is not None] if not is_named else []
    if not ranks or (ranks[0].world_size or 1) < 2:
        processes = list(target.processes) if target.wanted.is_all and target.processes else [target.one()]
        replies = [(one, ask(one, op, **request, **_meeting(arguments.at_step))) for one in processes]
        if is_change and is_named:
            _note_alone(processes[0])
        return replies, 0
    ranks.sort(key=lambda process: process.rank or 0)
    return _ask_ranks(ranks, op, {**request, **(_meeting(_common_step(arguments, ranks)) if is_change else {})})


def _ask_ranks(ranks: list[LiveProcess], op: str, request: dict[str, Any]) -> tuple[Replies, int]:
    from stethos.live.all_ranks import ask_all

    answers = ask_all(ranks, op, **request)
    refused = [answer for answer in answers if isinstance(answer, StethosError)]
    if len(refused) == len(ranks):
        raise refused[0]
    replies: Replies = []
    for process, answer in zip(ranks, answers, strict=True):
        if isinstance(answer, StethosError):
            sys.stderr.write(f"{process.title}: {clean(str(answer))}\n")
        else:
            replies.append((process, answer))
    if refused and "at_step" in request:
        sys.stderr.write("stethos: the ranks differ now; `stethos sync` compares them, undo with `all` or `rank:N`\n")
    return replies, 1 if refused else 0


def _common_step(arguments: argparse.Namespace, ranks: list[LiveProcess]) -> int:
    """The step that was asked for, or one that no rank has reached yet."""
    from stethos.live.all_ranks import meeting_step, missing_ranks
    from stethos.record.place import RunPlace

    if arguments.at_step is not None:
        return int(arguments.at_step)
    missing = missing_ranks(RunPlace(ranks[0].run_dir), ranks)
    if missing:
        rank, why = next(iter(missing.items()))
        raise LiveError(
            f"nothing was changed: rank {rank} {why}, and would no longer hold the same model",
            hint="on every machine of the job choose the same step with --at-step N; one rank alone: -t rank:N",
        )
    step = meeting_step(ranks)
    if step is None:
        raise LiveError(
            "nothing was changed: not all ranks make steps, and those that do would no longer hold the same model",
            hint="see where they are: `stethos all backtrace`",
        )
    return step


def _meeting(step: int | None) -> dict[str, Any]:
    if step is None:
        return {}
    return {"at_step": step, "wait_s": _WAIT_FOR_STEP_S, "timeout_s": _WAIT_FOR_STEP_S + _SPARE_S}


def _note_alone(process: LiveProcess) -> None:
    if process.rank is not None and (process.world_size or 1) > 1:
        sys.stderr.write(
            f"stethos: rank {process.rank} alone of {process.world_size} was changed; ranks that train one model "
            "differ from now on (`stethos sync`)\n"
        )


def _step(text: str) -> int:
    value = int(text)
    if not 0 < value < 2**53:
        raise argparse.ArgumentTypeError("a step is a number above 0")
    return value
