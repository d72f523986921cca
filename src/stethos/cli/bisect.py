"""Find the first bad round of a captured run, the fewest clients that made it bad, and what is wrong inside them.

    stethos bisect
    stethos bisect -t fed-1 --round 7      look at this round, whatever the test says
    stethos bisect -t fed-1 --json

Every captured global model is examined again on the test. Then clients are left out of the bad round, by delta
debugging over its recorded updates or, where these show nothing, by training on from there; at last the training of
each guilty client is repeated: does it send what it trained, and which samples do the harm? Needs `capture="all"`.
For a loop of your own name its functions: --evaluator, and --trainer to train again.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stethos.cli.target import open_target
from stethos.cli.text import clean
from stethos.cli.world import add_world_arguments, functions_in, note_changes
from stethos.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from stethos.lab.counterfactual import LabWorld
    from stethos.replay.inside import Inside
    from stethos.replay.own_world import OwnWorld
    from stethos.replay.past import Turnout

_SHOWN = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_world_arguments(parser, "evaluator", "trainer", "aggregator")
    parser.add_argument("--metric", metavar="NAME", default="accuracy", help="what makes a model good (only: accuracy)")
    parser.add_argument("--round", metavar="N", type=int, help="the bad round, if you know it")
    parser.add_argument("--json", action="store_true", help="print one object")


def run(arguments: argparse.Namespace) -> int:
    from stethos.lab.proving import world_of
    from stethos.replay.bisection import accuracies_of, first_bad_round, guilty_set
    from stethos.replay.bundle import open_bundle
    from stethos.replay.past import turnouts_of

    if arguments.metric != "accuracy":
        raise UsageError(f"--metric {arguments.metric}", hint="accuracy is the only one so far")
    with open_target(arguments) as one:
        bundle = open_bundle(one.path, arguments.federation)
    functions = functions_in(arguments)
    world = world_of(bundle, **functions)
    note_changes(bundle, functions["trainer"])
    answers = accuracies_of(bundle, world)
    bad = first_bad_round(answers)
    turnouts = turnouts_of(bundle)
    number = arguments.round or (bad.number if bad is not None else None)
    if number is not None and number not in [turnout.number for turnout in turnouts]:
        raise CaptureError(f"round {number} was not captured with all updates", hint="capture='all' keeps them")
    guilty = guilty_set(world, turnouts, number, bundle.rounds[-1], tell=_tell)
    inside = []
    for client in (guilty.clients if guilty else ())[:_SHOWN]:
        turns = [one for one in turnouts if client in one.clients and one.is_sound and number in (None, one.number)]
        if (found := _inside(world, turns[-1], client, can_train=functions["trainer"] is not None)) is not None:
            inside.append(found)
    if arguments.json:
        from stethos.cli.jsontext import print_json

        print_json({
            "accuracies": [{"round": place, "accuracy": float(flags.mean())} for place, flags in answers[1:]],
            "bad_round": None if bad is None else asdict(bad),
            "guilty": None if guilty is None else asdict(guilty),
            "inside": [{**asdict(one), "is_sent_as_trained": one.is_sent_as_trained} for one in inside],
        })  # fmt: skip
        return 0
    _show(answers[1:], bad, guilty, inside)
    return 0


def _inside(world: OwnWorld | LabWorld, turnout: Turnout, client: str, *, can_train: bool) -> Inside | None:
    """What is wrong inside a client's turn; None where nothing can be trained."""
    from stethos.replay.own_world import OwnWorld

    if isinstance(world, OwnWorld):
        from stethos.replay.inside import compare_turn

        return compare_turn(world.workshop, turnout, client) if can_train else None
    from stethos.lab.inside import look_inside

    return look_inside(world, turnout, client)


def _tell(trial: int, words: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K  trial {trial}: {clean(words)[:60]}")
        sys.stderr.flush()


def _show(answers: Any, bad: Any, guilty: Any, inside: list[Inside]) -> None:
    from stethos.cli.spark import sparkline

    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    means = [float(flags.mean()) for _, flags in answers]
    say = sys.stdout.write
    say(f"accuracy   {sparkline(means, len(means))}  {means[0]:.3f} -> {means[-1]:.3f}, {len(answers)} rounds\n")
    if bad is None:
        say("bad round  none: no captured model is clearly worse than one before it; looking at all of them\n")
    else:
        say(f"bad round  {bad.number}: {bad.before:.3f} after round {bad.good}, {bad.after:.3f} after it\n")
    if guilty is None:
        say("guilty     nobody: leaving clients out does not help by more than the noise of the test\n")
        return
    names = ", ".join(clean(name) for name in guilty.clients)
    said = f"without {guilty.accuracy:.3f} -> {guilty.without:.3f} ({guilty.way}, {guilty.trials} trials)"
    say(f"guilty     {names}: {said}\n")
    for one in inside:
        say(f"inside     {_words(one)}\n")


def _words(one: Inside) -> str:
    if one.odd_step is not None:
        return f"{clean(one.client)}: its loss is not finite from local step {one.odd_step} on"
    if not one.is_sent_as_trained:
        far = f"{one.parting:.1f} times the length of its change" if one.parting < float("inf") else "not finite"
        return f"{clean(one.client)}: it sent something else than it trained ({far} apart): its data are not at fault"
    if not one.is_searched:
        return f"{clean(one.client)}: it sent what it trained: look at its data and at its trainer"
    if one.label is None:
        return f"{clean(one.client)}: it sent what it trained, and no label's samples stand out"
    called = f"; without it the model calls {one.disputed} of these {one.answer}" if one.answer is not None else ""
    few = f"{min(one.samples)} to {max(one.samples)}"
    return (
        f"{clean(one.client)}: its samples labelled {one.label} ({len(one.samples)} of them are enough, "
        f"numbers {few}): {one.accuracy:.3f} -> {one.without_samples:.3f}{called}"
    )
