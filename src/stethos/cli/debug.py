"""Step through the rounds of a captured federation, forwards and backwards.

    stethos debug -t RUN
    (round 1) break c7             stop where client c7 takes part; also: break 12, break if accuracy < 0.8
    (round 1) continue             to the next break
    (round 4) in c7                into a client, then into its steps; out again
    (round 4 c7) remove c7         as if it had not been there
    (round 4) continue             carry on from here: train again, beside what was recorded

It works on a recorded run, and on a live one without stopping it. Commands may come from a pipe.
`help` lists the commands. Runs of the lab can be continued as they are; for your own training loop,
name its functions: --trainer train:local_training --evaluator train:evaluate.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

from stethos.cli.task.target import open_target
from stethos.cli.task.trainer import add_trainer_arguments, trainer_for
from stethos.record.border import make_directory
from stethos.settings import cache_dir

_HISTORY = "debug-history"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trainer_arguments(parser)
    parser.add_argument("--round", type=int, metavar="N", help="the round to begin with (default: the first)")


def run(arguments: argparse.Namespace) -> int:
    from stethos.cli.task.debugger import Debugger
    from stethos.replay.bundle import open_bundle
    from stethos.replay.cursor import Cursor

    target = open_target(arguments, is_replayed=True)
    bundle = open_bundle(target.path, arguments.federation)
    cursor = Cursor(bundle, target, lambda: trainer_for(bundle, arguments))
    cursor.goto(arguments.round if arguments.round is not None else cursor.first())
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    debugger = Debugger(cursor, is_terminal=is_terminal)
    if is_terminal:
        _read_history()
    try:
        debugger.cmdloop()
    finally:
        if is_terminal:
            _write_history()
    return 1 if debugger.failures and not is_terminal else 0


def _read_history() -> None:
    with contextlib.suppress(ImportError, OSError):
        import readline

        readline.set_history_length(1000)
        readline.read_history_file(cache_dir() / _HISTORY)


def _write_history() -> None:
    with contextlib.suppress(ImportError, OSError):
        import readline

        make_directory(cache_dir())
        readline.write_history_file(cache_dir() / _HISTORY)
