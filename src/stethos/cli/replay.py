"""Repeat a captured round, or a client's training, and compare it bit by bit.

    stethos replay                              what was captured
    stethos replay --round 12                   aggregate round 12 again
    stethos replay --round 12 --client c7       train client c7 again
    stethos replay --round 12 --all             the aggregation and every client of the round

Runs of the lab need nothing else. For your own training loop, name its function: --trainer train:local_training. The
exit status is 1 if anything differs; the output then says where the two first differ, and the likely reason.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.text import clean
from stethos.cli.task.target import open_target
from stethos.cli.task.trainer import add_cluster_arguments, add_trainer_arguments, trainer_for
from stethos.errors import UsageError
from stethos.record.border import version_of

if TYPE_CHECKING:
    from stethos.replay.bundle import Bundle
    from stethos.replay.repeat import Repetition
    from stethos.store.run import Run

_MOST_LAYERS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trainer_arguments(parser)
    add_cluster_arguments(parser)
    parser.add_argument("--round", type=int, metavar="N", help="the round to repeat")
    parser.add_argument("--client", metavar="NAME", help="the client whose training to repeat")
    parser.add_argument("--all", action="store_true", help="everything in the round or, without --round, in the run")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    from stethos.replay.bundle import open_bundle

    if arguments.client is not None and arguments.round is None:
        raise UsageError(f"--client {arguments.client} without a round", hint="add --round N")
    target = open_target(arguments, is_replayed=True)
    bundle = open_bundle(target.path, arguments.federation)
    if arguments.round is None and not arguments.all:
        return _overview(bundle, target.name, as_json=arguments.json)
    found = []
    for repetition in _repetitions(bundle, target, arguments):
        found.append(repetition)
        if not arguments.json:
            sys.stdout.write("\n".join(_lines(repetition)) + "\n")
            sys.stdout.flush()
    if arguments.json:
        sys.stdout.write(json.dumps([dataclasses.asdict(one) for one in found], default=str) + "\n")
    elif len(found) > 1:
        exact = sum(one.is_exact for one in found)
        sys.stdout.write(f"{exact} of {len(found)} repetitions gave the recorded bits\n")
    return 0 if all(one.is_exact for one in found) else 1


def _repetitions(bundle: Bundle, target: Run, arguments: argparse.Namespace) -> Iterator[Repetition]:
    from stethos.replay.repeat import check_round, repeat_aggregation, repeat_training

    rounds = bundle.rounds if arguments.round is None else (arguments.round,)
    for number in rounds:
        check_round(bundle, number)
    pieces: list[tuple[int, str | None]] = []
    for number in rounds:
        if arguments.client is None:
            pieces.append((number, None))
        clients = bundle.kept(number) if arguments.all else ()
        pieces += [(number, client) for client in ((arguments.client,) if arguments.client is not None else clients)]
    if arguments.on is not None:
        from stethos.cli.task.on_cluster import calls_on, repeat_one

        yield from calls_on(arguments, target.path, repeat_one, pieces)
        return
    trainer = trainer_for(bundle, arguments)
    for number, client in pieces:
        if client is None:
            yield repeat_aggregation(bundle, trainer, number)
        else:
            yield repeat_training(bundle, trainer, number, client, target)


def _lines(one: Repetition) -> Iterator[str]:
    how = f" ({one.note})" if one.note else ""
    if one.is_exact:
        yield f"{clean(one.what)}: the recorded bits{how}  {one.duration_s:.2f} s"
        return
    yield f"{clean(one.what)}: not the recorded bits{how}  {one.duration_s:.2f} s"
    if one.step is not None:
        yield f"  parts at step {one.step}" + (f" of {one.steps}" if one.steps else "")
    for layer in one.layers[:_MOST_LAYERS]:
        yield f"  {clean(str(layer))}"
    if len(one.layers) > _MOST_LAYERS:
        yield f"  and {len(one.layers) - _MOST_LAYERS} more layers"
    for number, reason in enumerate(one.reasons):
        yield f"  {'likely: ' if not number else 'or: '}{clean(reason)}"


def _overview(bundle: Bundle, name: str, *, as_json: bool) -> int:
    rounds, dropped, settings = bundle.rounds, bundle.dropped, bundle.settings
    size = sum(version[1] for path in bundle.place.objects.iterdir() if (version := version_of(path)))
    table: dict[str, Any] = {
        "run": name, "federation": settings.get("federation"), "mode": settings.get("mode"), "rounds": list(rounds),
        "dropped": dropped, "bytes": size, "is_finished": bundle.is_finished,
        "functions": {what: settings[what] for what in ("trainer", "evaluator", "aggregator") if what in settings},
    }  # fmt: skip
    if as_json:
        sys.stdout.write(json.dumps(table) + "\n")
        return 0
    span = (
        f"rounds {rounds[0]} to {rounds[-1]}" if rounds else "no round is kept" if dropped["rounds"] else "no round yet"
    )
    mode = clean(str(settings.get("mode")))
    sys.stdout.write(f"{clean(name)}: {span}, capture={mode!r}, {size / 1e6:.1f} MB\n")
    for first, last, reason in dropped["rounds"]:
        which = f"round {first} was" if first == last else f"rounds {first} to {last} were"
        mark = "" if reason.startswith("to ") else ":"
        sys.stdout.write(f"  {which} dropped{mark} {clean(reason)}\n")
    if dropped["rounds"] and not rounds:
        sys.stdout.write("  a larger capture_bytes keeps some: `stethos run --capture-bytes 2GB`\n")
    for reason, count in dropped["states"].items():
        sys.stdout.write(f"  {count} states were dropped: {clean(str(reason))}\n")
    for number in rounds[-3:]:
        evaluation = bundle.manifest(number).get("evaluation") or {}
        words = "  ".join(f"{clean(str(key))} {value:.4g}" for key, value in evaluation.items())
        sys.stdout.write(f"  round {number}: {len(bundle.kept(number))} updates  {words}\n")
    if rounds:
        sys.stdout.write(f"repeat one with `stethos replay -t {clean(name)} --round {rounds[-1]} --all`\n")
    return 0
