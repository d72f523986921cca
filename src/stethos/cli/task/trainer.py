"""The options that name the functions with which a recorded federation is repeated, and the trainer made of them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.text import clean
from stethos.cli.task.target import add_target
from stethos.cli.task.value import seconds
from stethos.errors import ReplayError
from stethos.guard import attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from stethos.lab.replay import LabTrainer
    from stethos.replay.bundle import Bundle
    from stethos.replay.own_trainer import OwnTrainer

_TIMEOUT_S = 600.0
_TASK_S = 3600.0
_FUNCTIONS = {
    "trainer": "f(state, client, round) returns the state that the client sends",
    "evaluator": "f(state) returns numbers by name, and as 'right' which test samples are right (or only these)",
    "aggregator": "f(state, states, samples) returns the new global state",
    "predictor": "f(state, inputs) returns scores, a row for each input",
}
TRAINING = ("trainer", "evaluator", "aggregator")


def add_trainer_arguments(parser: argparse.ArgumentParser, functions: tuple[str, ...] = TRAINING) -> None:
    """The target, and those functions of a loop of the user's own that the command can use."""
    add_target(parser)
    parser.add_argument("--federation", metavar="NAME", help="only this federation, where the run has several")
    for name in functions:
        parser.add_argument(f"--{name}", metavar="MODULE:FUNCTION", help=f"for your own loop: {_FUNCTIONS[name]}")
    if "trainer" in functions:
        parser.add_argument(
            "--client-app", metavar="MODULE:APP", help="a Flower ClientApp, called with the recorded message"
        )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=_TIMEOUT_S,
        metavar="SECONDS",
        help="time limit for one call of these functions (default: 600)",
    )


def add_cluster_arguments(parser: argparse.ArgumentParser, what: str = "run as Ray tasks with the same result") -> None:
    """Where work runs whose parts do not depend on each other; `what` becomes tasks there."""
    parser.add_argument("--on", metavar="CLUSTER", help=f"{what}: ray://HOST:PORT or local")
    parser.add_argument(
        "--task-timeout",
        type=seconds,
        default=_TASK_S,
        metavar="S",
        help="with --on: time limit for one task (default: 3600)",
    )


def functions_in(arguments: argparse.Namespace, bundle: Bundle) -> dict[str, Callable[..., Any]]:
    """The functions that were named, imported. What a capture names is never imported."""
    from stethos.replay.own_function import function_named

    if attempt(__import__, "torch") is None:
        raise ReplayError("torch is not installed here", hint="repeat the run where it was trained")
    named = {name: getattr(arguments, name, None) for name in _FUNCTIONS}
    found = {name: function_named(text) for name, text in named.items() if text}
    if getattr(arguments, "client_app", None):
        from stethos.adapters.flower.replay import trainer_of  # brings Flower

        found["trainer"] = trainer_of(function_named(arguments.client_app), bundle)
    return found


def trainer_for(
    bundle: Bundle, arguments: argparse.Namespace, functions: dict[str, Callable[..., Any]] | None = None, *,
    is_fast: bool = False,
) -> OwnTrainer | LabTrainer:  # fmt: skip
    """The lab's for its own runs, else one that calls the functions named; a fast one is for proofs."""
    functions = functions_in(arguments, bundle) if functions is None else functions
    if isinstance(bundle.settings.get("lab"), dict) and not functions:
        from stethos.lab.replay import trainer_of

        return trainer_of(bundle, is_fast=is_fast)
    from stethos.replay.own_trainer import OwnTrainer

    return OwnTrainer(bundle, timeout_s=arguments.timeout, **functions)


def note_changes(bundle: Bundle, trainer: Callable[..., Any] | None) -> None:
    """Say on stderr what is not as it was when the run was recorded: then trainings again may differ from it."""
    from stethos.replay.repeat import code_changes, environment_changes

    for words in (*environment_changes(bundle.settings), *code_changes(bundle.settings, trainer)):
        if not words.startswith("thread count"):  # as many as in the recording are used
            sys.stderr.write(f"note: {clean(words)}\n")
