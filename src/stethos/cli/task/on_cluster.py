"""Replays as tasks of a Ray cluster: each worker opens the capture and the functions by itself.

The run's directory must be where the workers are, at the same path: on this machine, or on a shared file system.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.progress import progress_bar
from stethos.cluster import check_place, run_calls

if TYPE_CHECKING:
    from stethos.replay.arm import Arm, ArmRunner
    from stethos.replay.effect import Flags
    from stethos.replay.provenance import RoundEffect
    from stethos.replay.repeat import Repetition

_OPTIONS = ("federation", "trainer", "evaluator", "aggregator", "predictor", "client_app", "timeout")


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """What a worker needs to repeat a run: where it is, from where modules are imported, and the options given."""

    path: str
    directory: str
    options: tuple[tuple[str, Any], ...]


def replay_source(arguments: argparse.Namespace, path: Path) -> ReplaySource:
    options = tuple((name, getattr(arguments, name, None)) for name in _OPTIONS)
    return ReplaySource(str(path.resolve()), os.getcwd(), options)


@lru_cache(maxsize=2)
def _opened(source: ReplaySource, *, is_fast: bool) -> tuple[Any, Any]:
    from stethos.cli.task.trainer import trainer_for
    from stethos.replay.bundle import open_bundle

    os.chdir(source.directory)
    arguments = argparse.Namespace(**dict(source.options))
    bundle = open_bundle(Path(source.path), arguments.federation)
    return bundle, trainer_for(bundle, arguments, is_fast=is_fast)


def train_arm(source: ReplaySource, arm: Arm) -> Flags:
    """On a worker: one arm of a proof or bisection."""
    from stethos.replay.arm import answers_of

    bundle, trainer = _opened(source, is_fast=True)
    return answers_of(bundle, trainer, arm)


def judge_round(source: ReplaySource, number: int, given: Any, output: int) -> list[RoundEffect]:
    """On a worker: who made one round's model answer as it does."""
    from stethos.replay.history import recorded_rounds
    from stethos.replay.provenance import effects_in

    bundle, trainer = _opened(source, is_fast=True)
    (one,) = [one for one in recorded_rounds(bundle, number) if one.number == number]
    return effects_in(trainer, one, trainer.sample(given), output)


def repeat_one(source: ReplaySource, number: int, client: str | None) -> Repetition:
    """On a worker: an aggregation, or a client's training, done again."""
    from stethos.record.place import RunPlace
    from stethos.replay.repeat import repeat_aggregation, repeat_training
    from stethos.store.run import Run

    bundle, trainer = _opened(source, is_fast=False)
    if client is None:
        return repeat_aggregation(bundle, trainer, number)
    with Run(RunPlace(Path(source.path))) as run:
        return repeat_training(bundle, trainer, number, client, run)


def arms_on(arguments: argparse.Namespace, path: Path) -> ArmRunner | None:
    """Trains arms on the cluster that `--on` names; None without it."""
    if arguments.on is None:
        return None
    where, source = check_place(arguments.on), replay_source(arguments, path)

    def run(arms: Sequence[Arm], tell: Callable[[Arm, int], None]) -> Iterator[tuple[Arm, Flags]]:
        calls = [(source, arm) for arm in arms]
        for number, flags in run_calls(train_arm, calls, where, timeout_s=arguments.task_timeout):
            tell(arms[number], arms[number].last)
            yield arms[number], flags

    return run


def calls_on(
    arguments: argparse.Namespace, path: Path, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Make calls of a function above, each with its own arguments, on the cluster; the results in their order."""
    source, where = replay_source(arguments, path), check_place(arguments.on)
    made: dict[int, Any] = {}
    with progress_bar("tasks", len(calls)) as tell:
        for number, result in run_calls(
            function, [(source, *one) for one in calls], where, timeout_s=arguments.task_timeout
        ):
            made[number] = result
            tell(1)
    return [made[number] for number in range(len(calls))]
