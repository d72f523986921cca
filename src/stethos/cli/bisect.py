"""Find the first bad round of a captured run, the fewest clients that made it bad, and what is wrong inside them.

    stethos bisect
    stethos bisect -t fed-1 --round 7      look at this round, whatever the test results are
    stethos bisect -t fed-1 --json

It evaluates every captured global model again on the test set. Then clients are left out of the bad round, by delta
debugging over its recorded updates or, where these show nothing, by training on from there; finally, the training of
each guilty client is repeated: does it send what it trained, and which samples do the harm? Needs `capture="all"`. For
your own training loop, name its functions: --evaluator, and --trainer to train again.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.progress import show_progress
from stethos.cli.screen.text import clean
from stethos.cli.task.target import open_target
from stethos.cli.task.trainer import (
    add_cluster_arguments,
    add_trainer_arguments,
    functions_in,
    note_changes,
    trainer_for,
)
from stethos.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from stethos.lab.replay import LabTrainer
    from stethos.replay.history import RecordedRound
    from stethos.replay.inside import RetrainedTurn
    from stethos.replay.own_trainer import OwnTrainer

_SHOWN = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trainer_arguments(parser)
    add_cluster_arguments(parser)
    parser.add_argument(
        "--metric", metavar="NAME", default="accuracy", help="the metric to judge models by (only: accuracy)"
    )
    parser.add_argument("--round", metavar="N", type=int, help="the bad round, if you know it")
    parser.add_argument("--json", action="store_true", help="print one object")


def run(arguments: argparse.Namespace) -> int:
    from stethos.cli.task.on_cluster import arms_on
    from stethos.record.place import RunPlace
    from stethos.replay.bisection import accuracies_of, first_bad_round, guilty_set
    from stethos.replay.bundle import open_bundle
    from stethos.replay.history import recorded_rounds
    from stethos.replay.kept import keeping, kept_file, sources_of

    if arguments.metric != "accuracy":
        raise UsageError(f"--metric {arguments.metric}", hint="accuracy is the only one so far")
    with open_target(arguments, is_replayed=True) as one:
        bundle = open_bundle(one.path, arguments.federation)
    functions = functions_in(arguments, bundle)
    trainer = trainer_for(bundle, arguments, functions, is_fast=True)
    note_changes(bundle, functions.get("trainer"))
    answers = accuracies_of(bundle, trainer)
    bad = first_bad_round(answers)
    recorded = recorded_rounds(bundle)
    number = arguments.round or (bad.number if bad is not None else None)
    if number is not None and number not in [one.number for one in recorded]:
        raise CaptureError(f"round {number} was not captured with all updates", hint="capture='all' keeps them")
    run_arms = arms_on(arguments, one.path)
    if run_arms is not None and RunPlace(one.path).is_ours():
        file = kept_file(one.path, "bisect", *sources_of(functions.values()))
        run_arms = keeping(run_arms, file, answers[0][1].size)
    guilty = guilty_set(bundle, trainer, recorded, number, tell=_tell, run_arms=run_arms)
    show_progress()
    inside = []
    for client in (guilty.clients if guilty else ())[:_SHOWN]:
        turns = [one for one in recorded if client in one.clients and one.is_sound and number in (None, one.number)]
        if (found := _inside(trainer, turns[-1], client)) is not None:
            inside.append(found)
    if arguments.json:
        print_json({
            "accuracies": [{"round": place, "accuracy": float(flags.mean())} for place, flags in answers[1:]],
            "bad_round": None if bad is None else asdict(bad),
            "guilty": None if guilty is None else asdict(guilty),
            "inside": [{**asdict(one), "is_sent_as_trained": one.is_sent_as_trained} for one in inside],
        })  # fmt: skip
        return 0
    _show(answers[1:], bad, guilty, inside)
    return 0


def _inside(trainer: OwnTrainer | LabTrainer, recorded: RecordedRound, client: str) -> RetrainedTurn | None:
    """What is wrong inside a client's turn; None where nothing can be trained."""
    from stethos.replay.inside import compare_turn
    from stethos.replay.own_trainer import OwnTrainer

    if isinstance(trainer, OwnTrainer):
        return compare_turn(trainer, recorded, client) if trainer.can_train else None
    from stethos.lab.inside import look_inside

    return look_inside(trainer, recorded, client)


def _tell(trial: int, words: str) -> None:
    show_progress(f"trial {trial}: {words[:60]}")


def _show(answers: Any, bad: Any, guilty: Any, inside: list[RetrainedTurn]) -> None:
    from stethos.cli.screen.spark import sparkline

    means = [float(flags.mean()) for _, flags in answers]
    say = sys.stdout.write
    say(f"accuracy   {sparkline(means, len(means))}  {means[0]:.3f} -> {means[-1]:.3f}, {len(answers)} rounds\n")
    if bad is None:
        say("bad round  none: no captured model is clearly worse than an earlier one; checking all rounds\n")
    else:
        say(f"bad round  {bad.number}: {bad.before:.3f} after round {bad.good}, {bad.after:.3f} after it\n")
    if guilty is None:
        say("guilty     none: leaving clients out improves the model by no more than noise\n")
        return
    names = ", ".join(clean(name) for name in guilty.clients)
    said = f"without {guilty.accuracy:.3f} -> {guilty.without:.3f} ({guilty.way}, {guilty.trials} trials)"
    say(f"guilty     {names}: {said}\n")
    for one in inside:
        say(f"inside     {_words(one)}\n")


def _words(one: RetrainedTurn) -> str:
    if one.odd_step is not None:
        return f"{clean(one.client)}: its loss is not finite from local step {one.odd_step} on"
    if not one.is_sent_as_trained:
        far = f"{one.parting:.1f} times the length of its change" if one.parting < float("inf") else "not finite"
        sent = f"it sent something other than what it trained ({far} apart)"
        return f"{clean(one.client)}: {sent}: its data are not at fault"
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
