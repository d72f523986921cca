"""Show what corrections did to a training, or in a dry run would have done, and why; undo one.

    stethos actions
    stethos actions -t fed-1 --json
    stethos actions --undo 3          takes effect before the next round

Actions come from `federation(correct=...)`, `lab.federate(correct=...)` and `observe_strategy(correct=...)`.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from stethos.cli.screen.jsontext import print_json_rows
from stethos.cli.screen.text import clean, cut
from stethos.cli.task.target import add_target, open_target
from stethos.errors import UsageError

if TYPE_CHECKING:
    from stethos.diagnose.finding import ActionTaken
    from stethos.store.run import Run

_WIDEST = 110


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--undo", metavar="ID", type=int, help="undo an action")
    parser.add_argument("--json", action="store_true", help="print one object per line")


def run(arguments: argparse.Namespace) -> int:
    from stethos.diagnose.followup import actions_of
    from stethos.view.machine import ACTIONS

    if arguments.undo is not None and arguments.anywhere:
        raise UsageError("--undo changes a training: name it", hint="give -t RUN instead of --anywhere")
    with open_target(arguments) as one:
        if arguments.json and arguments.undo is None:
            print_json_rows(ACTIONS.records(one))
            return 0
        actions = actions_of(one)
        if arguments.undo is not None:
            return _undo(one, actions, arguments.undo)
        if not actions:
            words = 'nothing was corrected; a training must ask for it: correct="on", or "dry-run"'
            sys.stdout.write(f"run {clean(one.name)}: {words}\n")
        for action in actions:
            sys.stdout.write(f"{action.action:>3}  {clean(action.text)}\n")
            for label, words in (("why", action.reason), ("effect", action.effect)):
                if words:
                    sys.stdout.write(f"     {label:7} {cut(clean(words), _WIDEST)}\n")
        return 0


def _undo(one: Run, actions: list[ActionTaken], number: int) -> int:
    from stethos.act.recording import request_undo

    known = [action for action in actions if action.action == number]
    if not known:
        listed = ", ".join(str(action.action) for action in actions) or "none"
        raise UsageError(f"run {one.name} has no action {number}", hint=f"its actions: {listed}")
    if known[-1].state in ("undone", "refused"):
        raise UsageError(f"action {number} is {known[-1].state}", hint="there is nothing to undo")
    if not one.is_live:
        raise UsageError(
            f"run {one.name} has ended: its model can no longer be changed",
            hint="`stethos prove` shows what the run would have been without the client",
        )
    request_undo(one.path, number)
    sys.stdout.write(f"action {number} ({known[-1].what}) will be undone before the next round, and not be repeated\n")
    return 0
