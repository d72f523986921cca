"""The options that say with whose functions a recorded federation is tried: for `prove`, `bisect` and `blame`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from stethos.cli.duration import seconds
from stethos.cli.target import add_target
from stethos.cli.text import clean
from stethos.errors import ReplayError
from stethos.guard import attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from stethos.replay.bundle import Bundle

_TIMEOUT_S = 600.0
_FUNCTIONS = {
    "evaluator": "from a state dict to booleans, one per test sample (or these and the labels)",
    "trainer": "from a state dict, a client and a round to the state it sends",
    "aggregator": "from the global state, the clients' states and their samples to the new one",
    "predictor": "from a state dict and inputs to scores, a row for each input",
}


def add_world_arguments(parser: argparse.ArgumentParser, *functions: str) -> None:
    """The target, and those functions of a loop of the user's own that the command can use."""
    add_target(parser)
    parser.add_argument("--federation", metavar="NAME", help="only this federation, where the run has several")
    for name in functions:
        text = f"of a loop of your own: {_FUNCTIONS[name]}"
        parser.add_argument(f"--{name}", metavar="MODULE:FUNCTION", help=text)
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=_TIMEOUT_S,
        metavar="SECONDS",
        help="how long one call of such a function may take (default: 600)",
    )


def functions_in(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was named, imported; and the time limit."""
    from stethos.replay.workshop import function_named

    if attempt(__import__, "torch") is None:
        raise ReplayError("torch is not installed here", hint="go back to the machine where it was trained")
    found: dict[str, Callable[..., Any] | None] = {}
    for name in _FUNCTIONS:
        text = getattr(arguments, name, None)
        found[name] = function_named(text) if text is not None else None
    return {**found, "timeout_s": arguments.timeout}


def note_changes(bundle: Bundle, trainer: Callable[..., Any] | None) -> None:
    """Say on stderr what is not as it was when the run was recorded: then trainings again may differ from it."""
    from stethos.replay.repeat import code_changes, environment_changes

    for words in (*environment_changes(bundle.settings), *code_changes(bundle.settings, trainer)):
        if not words.startswith("thread count"):  # as many as in the recording are used
            sys.stderr.write(f"note: {clean(words)}\n")
