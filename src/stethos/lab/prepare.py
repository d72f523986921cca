"""All that a federation of the lab needs before its first round, made from the choices of whoever asked for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import nn

from stethos.errors import UsageError
from stethos.lab.apply_fault import check_layers
from stethos.lab.choice import choose
from stethos.lab.client_data import ClientData
from stethos.lab.clock import Timing, VirtualClock
from stethos.lab.course import Setup
from stethos.lab.data import Data, load
from stethos.lab.engine import Loop, Parts, Processes, Stacked, TrainingEngine
from stethos.lab.fault import Fault, resolved
from stethos.lab.flat import Layout
from stethos.lab.local import OPTIMIZERS, LocalTraining
from stethos.lab.model import Factory, recipe_of
from stethos.lab.result import Exchange
from stethos.lab.seed import generator
from stethos.lab.server import Strategy, strategy_of
from stethos.lab.split import Split, deal, split_of

EngineName = Literal["loop", "stacked"]
_COPIES = {"sgd": 3, "adam": 5}  # of the model, in a client's memory: weights, gradients, what came in, moments


@dataclass(frozen=True, eq=False)
class LabChoices:
    """What `lab.federate` was asked for, as far as it decides the bits."""

    data: str | Data
    clients: int
    rounds: int
    split: Split | str
    model: str | Factory
    strategy: Strategy | str
    faults: Sequence[Fault]
    participation: float
    local_epochs: int
    batch: int
    lr: float
    optimizer: str
    timing: Timing
    seed: int
    engine: EngineName

    def check(self) -> None:
        """UsageError for a choice that makes no sense."""
        counts = {name: getattr(self, name) for name in ("clients", "rounds", "local_epochs", "batch")}
        for name, value in counts.items():
            check_count(name, value)
        if not 0 < self.participation <= 1:
            raise UsageError(f"participation={self.participation!r}", hint="a share of the clients: above 0, at most 1")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise UsageError(f"lr={self.lr!r}", hint="a learning rate is above 0")
        if not isinstance(self.seed, int | np.integer) or self.seed < 0:
            raise UsageError(f"seed={self.seed!r}", hint="a seed is a whole number from 0")
        choose("optimizer", self.optimizer, OPTIMIZERS)
        choose("engine", self.engine, dict.fromkeys(get_args(EngineName)))


@dataclass(frozen=True, eq=False)
class Prepared:
    """Ready for the first round: `faults` are the truth, `labels` the honest labels of each client."""

    task: Data
    labels: dict[str, NDArray[np.int64]]
    faults: tuple[Fault, ...]
    strategy: Strategy
    model: nn.Module
    parts: Parts
    setup: Setup


def check_count(name: str, value: int) -> None:
    """UsageError unless it is a whole number from 1."""
    if not isinstance(value, int | np.integer) or value < 1:
        raise UsageError(f"{name}={value!r}", hint=f"{name} is a whole number from 1")


def prepare(
    choices: LabChoices, *, wants_answers: bool, each_round: Callable[[Exchange], None] | None = None
) -> Prepared:
    """Load the data, deal them out, apply the faults of data, and make the initial model."""
    choices.check()
    seed = choices.seed
    server = strategy_of(choices.strategy)
    task = load(choices.data, seed=seed) if isinstance(choices.data, str) else choices.data
    labels = task.train_y.numpy()
    parts = deal(split_of(choices.split), labels, choices.clients, generator(seed, "split"))
    own_labels = {f"c{client}": labels[part] for client, part in enumerate(parts)}
    truth = resolved(choices.faults, own_labels, task.classes)
    recipe = recipe_of(choices.model, task, seed)
    client_data = ClientData(task, parts, truth, seed)
    training = LocalTraining(
        choices.local_epochs, choices.batch, choices.lr, choices.optimizer, server.proximal, seed, wants_answers
    )
    model = recipe.build()
    layout = Layout.of(model)
    check_layers(truth, layout)
    state_bytes = layout.bytes_of(layout.read(model).counters)
    clock = VirtualClock(choices.timing, [len(part) * choices.local_epochs for part in parts], state_bytes, seed)
    setup = Setup(
        task, client_data, truth, server, choices.participation, choices.local_epochs, _COPIES[choices.optimizer],
        clock, seed, each_round, training.batches,
    )  # fmt: skip
    return Prepared(task, own_labels, truth, server, model, (recipe, client_data, training), setup)


def engine_of(name: EngineName, processes: int, parts: Parts) -> TrainingEngine:
    """The engine of that name; UsageError where it cannot use that many processes."""
    if name == "stacked":
        if processes > 1:
            raise UsageError(f"engine='stacked' with processes={processes}", hint="it uses one process: leave it out")
        return Stacked(parts)
    return Loop(parts) if processes == 1 else Processes(parts, processes)
