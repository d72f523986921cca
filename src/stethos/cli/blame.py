"""Say which clients' updates made the global model give this answer to an input.

    stethos blame --input digit.npy
    stethos blame --input digit.npy --output 7 -t fed-1
    stethos blame --input 12                          test sample 12 of the lab, counted from 0

Needs a capture with all updates (`capture="all"`). The input is what the model gets, after all preprocessing: one
sample in a .npy or .safetensors file. Without --output, it explains the model's own answer.
For your own training loop, name the function that runs the model: --predictor train:scores.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean
from stethos.cli.task.target import open_target
from stethos.cli.task.trainer import add_cluster_arguments, add_trainer_arguments, trainer_for
from stethos.errors import UsageError
from stethos.record.border import open_named

if TYPE_CHECKING:
    from stethos.replay.provenance import Provenance

_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", metavar="FILE", required=True, help="a .npy or .safetensors file, or the number of a test sample"
    )
    parser.add_argument("--output", metavar="CLASS", type=int, help="the answer to explain (default: the model's)")
    add_trainer_arguments(parser, ("predictor", "aggregator"))
    add_cluster_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one object")


def run(arguments: argparse.Namespace) -> int:
    from stethos.replay.bundle import open_bundle
    from stethos.replay.history import recorded_rounds
    from stethos.replay.provenance import ROUNDS, provenance_of

    with open_target(arguments, is_replayed=True) as one:
        bundle = open_bundle(one.path, arguments.federation)
        trainer = trainer_for(bundle, arguments, is_fast=True)
        x = trainer.sample(_given(arguments.input))
        start = time.perf_counter()
        recorded = recorded_rounds(bundle, bundle.rounds[-min(ROUNDS, len(bundle.rounds))])
        found = provenance_of(trainer, recorded, x, arguments.output, _rounds_on(arguments, one.path))
        took_ms = 1e3 * (time.perf_counter() - start)
    if arguments.json:
        from dataclasses import asdict

        print_json({**asdict(found), "duration_ms": took_ms})
    else:
        _show(found, took_ms)
    return 0


def _rounds_on(arguments: argparse.Namespace, path: Path) -> Any:
    """Judges rounds on the cluster that `--on` names; None without it."""
    if arguments.on is None:
        return None
    from stethos.cli.task.on_cluster import calls_on, judge_round

    given = _given(arguments.input)
    return lambda rounds, output: calls_on(arguments, path, judge_round, [(one, given, output) for one in rounds])


def _given(text: str) -> Any:
    """The number of a sample, or the array in a file; nothing in a file is executed."""
    import numpy as np

    if text.isdecimal() and not Path(text).exists():
        return int(text)
    path = Path(text)
    try:
        if path.suffix == ".safetensors":
            return _in_safetensors(path)
        with open_named(path):  # nothing that would make us wait
            found = np.load(path, mmap_mode="r", allow_pickle=False)  # takes no memory for what a header claims
        if not isinstance(found, np.ndarray):
            raise ValueError("several arrays in one file")
        return np.array(found)
    except FileNotFoundError:
        raise UsageError(f"no file {clean(text)}", hint="a .npy or .safetensors file, or a number") from None
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(
            f"{clean(text)} holds no array: {clean(str(error))[:200]}", hint="numpy.save(file, array) makes one"
        ) from None


def _in_safetensors(path: Path) -> Any:
    from stethos.replay.place import read_file
    from stethos.replay.tensorfile import array_in, parse

    file = read_file(path)
    entries, _ = parse(file)
    if len(entries) != 1:
        raise UsageError(f"{clean(path.name)} holds {len(entries)} tensors", hint="it must hold one tensor: one sample")
    return array_in(file, next(iter(entries.values())))


def _show(found: Provenance, took_ms: float) -> None:
    first = found.shares[0]
    answer = "" if found.answer == found.output else f" (its answer is {found.answer})"
    sys.stdout.write(
        f"the global model gives class {found.output} a probability of {found.probability:.3f}{answer}\n"
        f"most responsible: client {clean(first.client)}\n\n"
        f"{'client':12} {'added to log-odds':>18} {'its own belief':>15} {'without it':>11} {'answer then':>12}\n"
    )
    for share in found.shares[:_SHOWN]:
        sys.stdout.write(
            f"{clean(share.client):12} {share.effect:18.2f} {share.belief:15.3f} {share.without:11.3f} "
            f"{share.answer:12}\n"
        )
    if len(found.shares) > _SHOWN:
        sys.stdout.write(f"and {len(found.shares) - _SHOWN} more: --json\n")
    span = f"rounds {found.rounds[0]} to {found.rounds[-1]}"
    sys.stdout.write(f"\n{span}, each aggregated again without each client; {took_ms:.0f} ms\n")
