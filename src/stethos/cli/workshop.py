"""The options that say with whose functions a recorded federation is repeated."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import TYPE_CHECKING

from stethos.cli.duration import seconds
from stethos.cli.target import add_target
from stethos.errors import ReplayError
from stethos.guard import attempt

if TYPE_CHECKING:
    from stethos.replay.bundle import Bundle
    from stethos.replay.workshop import Workshop

_TIMEOUT_S = 600.0


def add_workshop_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--federation", metavar="NAME", help="only this federation, where the run has several")
    parser.add_argument("--trainer", metavar="MODULE:FUNCTION", help="how a client trains: f(state, client, round)")
    parser.add_argument("--evaluator", metavar="MODULE:FUNCTION", help="how a global model is judged: f(state)")
    parser.add_argument(
        "--aggregator", metavar="MODULE:FUNCTION", help="how the server aggregates: f(state, states, samples)"
    )
    parser.add_argument(
        "--client-app", metavar="MODULE:APP", help="a Flower ClientApp, called with the recorded message"
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=_TIMEOUT_S,
        metavar="SECONDS",
        help="how long a function may take (default: 600)",
    )


def workshop_for(bundle: Bundle, arguments: argparse.Namespace) -> Workshop:
    """The lab's own for its runs, else one of the functions that were named. What a capture names is not imported."""
    if attempt(__import__, "torch") is None:
        raise ReplayError("torch is not installed here", hint="repeat the run where it was trained")
    from stethos.replay.workshop import OwnWorkshop, function_named

    named = (arguments.trainer, arguments.evaluator, arguments.aggregator)
    if isinstance(bundle.settings.get("lab"), dict) and not any(named) and not arguments.client_app:
        from stethos.lab.replay import workshop_of

        return workshop_of(bundle)
    trainer, evaluator, aggregator = (function_named(text) if text else None for text in named)
    if arguments.client_app:
        adapter = import_module("stethos.adapters.flower.replay")  # brings Flower
        trainer = adapter.trainer_of(function_named(arguments.client_app), bundle)
    return OwnWorkshop(
        bundle, trainer=trainer, evaluator=evaluator, aggregator=aggregator, timeout_s=arguments.timeout
    )  # fmt: skip
