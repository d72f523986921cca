"""The scenarios: what is planted, how strongly, and what the profile should say. All drawn from the seed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_ROUNDS = 10
_CLIENTS = 10


@dataclass(frozen=True, slots=True)
class Expected:
    """What should be named: a kind, and where it applies who or what; a kind of "" is nothing."""

    kind: str
    clients: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """`make(path, seed)` records a run at `path` and returns what should be said about it.

    `sleeps` where it hardly uses a processor, so that several can run side by side; `is_slow` where it takes half a
    minute.
    """

    name: str
    make: Callable[[Path, int], Expected]
    sleeps: bool = False
    is_slow: bool = False


def chance_of(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, *name.encode()])


def _federate(path: Path, seed: int, **options: object) -> None:
    from stethos import lab

    lab.federate(
        "digits", clients=_CLIENTS, rounds=_ROUNDS, seed=seed, dir=path.parent, run=path.name, progress=False,
        **{"engine": "stacked", **options},  # type: ignore[arg-type]
    )  # fmt: skip


def slow_link(path: Path, seed: int) -> Expected:
    return _faulty(path, seed, "slow-link", "slow-link")


def slow_client(path: Path, seed: int) -> Expected:
    return _faulty(path, seed, "slow-compute", "slow-client")


def _faulty(path: Path, seed: int, kind: str, expected: str) -> Expected:
    from stethos import lab

    chance = chance_of(seed, kind)
    client = f"c{chance.integers(_CLIENTS)}"
    strength = float(chance.uniform(3, 10))
    _federate(path, seed, faults=[lab.Fault(kind, clients=client, strength=strength)])
    return Expected(expected, (client,))


def late_aggregation(path: Path, seed: int) -> Expected:
    from stethos import lab

    _federate(path, seed, timing=lab.Timing(aggregate_ms=float(chance_of(seed, "late").uniform(150, 600))))
    return Expected("aggregation-bound")


def big_layer(path: Path, seed: int) -> Expected:
    from torch import nn

    width = int(chance_of(seed, "big").integers(1024, 4096))

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    _federate(path, seed, engine="loop", model=model)
    return Expected("big-layer", layers=("1.weight",))


def balanced_federation(path: Path, seed: int) -> Expected:
    from stethos import lab

    spread = float(chance_of(seed, "balanced").uniform(0.0, 0.15))
    _federate(path, seed, timing=lab.Timing(spread=spread))
    return Expected("")


def slow_loader(path: Path, seed: int) -> Expected:
    _train(path, seed, "loader")
    return Expected("input-bound")


def balanced_training(path: Path, seed: int) -> Expected:
    _train(path, seed, "balanced")
    return Expected("")


def leak(path: Path, seed: int) -> Expected:
    _train(path, seed, "leak")
    return Expected("leak")


def long_training(path: Path, seed: int) -> Expected:
    _train(path, seed, "long")
    return Expected("")


def _train(path: Path, seed: int, what: str) -> None:
    """A training in a process of its own."""
    with tempfile.TemporaryFile("w+") as said:
        words = [sys.executable, "-m", "benchmarks.profilebench.training", what, str(seed), str(path)]
        if subprocess.run(words, check=False, stdout=said, stderr=said).returncode:
            said.seek(0)
            raise RuntimeError(said.read()[-2000:])


SCENARIOS = (
    Scenario("slow link", slow_link),
    Scenario("slow client", slow_client),
    Scenario("late aggregation", late_aggregation),
    Scenario("big layer", big_layer),
    Scenario("slow loader", slow_loader, sleeps=True),
    Scenario("leak", leak, sleeps=True, is_slow=True),
    Scenario("balanced federation", balanced_federation),
    Scenario("balanced training", balanced_training),
    Scenario("balanced training, half a minute", long_training, sleeps=True, is_slow=True),
)
