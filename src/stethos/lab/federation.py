"""`federate`: a whole federation on real data, in this process, with faults on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from stethos.errors import UsageError
from stethos.lab import observed
from stethos.lab.choice import choose
from stethos.lab.clock import Timing, VirtualClock
from stethos.lab.course import Course, Setup
from stethos.lab.data import Data, load
from stethos.lab.engine import Engine, Loop, Parts, Processes, Stacked
from stethos.lab.fault import Fault, resolved
from stethos.lab.flat import Layout
from stethos.lab.local import OPTIMIZERS, Training
from stethos.lab.model import Factory, recipe_of
from stethos.lab.result import Exchange, LabResult
from stethos.lab.seed import generator
from stethos.lab.server import Strategy, strategy_of
from stethos.lab.shelf import Shelf
from stethos.lab.split import IID, Split, deal, split_of
from stethos.lab.spoil import check_layers

EngineName = Literal["loop", "stacked"]
_COPIES = {"sgd": 3, "adam": 5}  # of the model, in a client's memory: weights, gradients, what came in, moments


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small matrices gain nothing from several threads, and one thread adds up in the same order everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@_one_thread()
def federate(
    data: str | Data = "digits",
    *,
    clients: int = 10,
    rounds: int = 20,
    split: Split | str = IID(),  # noqa: B008  # frozen
    model: str | Factory = "mlp",
    strategy: Strategy | str = "fedavg",
    faults: Sequence[Fault] = (),
    participation: float = 1.0,
    local_epochs: int = 1,
    batch: int = 32,
    lr: float = 0.1,
    optimizer: str = "sgd",
    timing: Timing = Timing(),  # noqa: B008  # frozen
    seed: int = 0,
    engine: EngineName = "loop",
    processes: int = 1,
    observe: bool = True,
    dir: str | Path | None = None,
    run: str | None = None,
    progress: bool | None = None,
    each_round: Callable[[Exchange], None] | None = None,
) -> LabResult:
    """Train a model over clients "c0", "c1", ... and return what came of it; by default it is recorded as a run.

    The same call gives the same bits: observed or not, in one process or in
    several, whatever random numbers were drawn before. The engine "stacked"
    trains all clients of a round at once, for many runs of small models; it
    agrees with "loop" up to rounding, and has no step rows. `each_round` is
    shown what the server saw, before it aggregates.
    """
    _check(
        clients=clients, rounds=rounds, local_epochs=local_epochs, batch=batch, processes=processes,
        participation=participation, lr=lr, seed=seed,
    )  # fmt: skip
    choose("optimizer", optimizer, OPTIMIZERS)
    choose("engine", engine, dict.fromkeys(get_args(EngineName)))
    server = strategy_of(strategy)
    task = load(data, seed=seed) if isinstance(data, str) else data
    labels = task.train_y.numpy()
    parts = deal(split_of(split), labels, clients, generator(seed, "split"))
    own_labels = {f"c{client}": labels[part] for client, part in enumerate(parts)}
    truth = resolved(faults, own_labels, task.classes)
    recipe = recipe_of(model, task, seed)
    shelf = Shelf(task, parts, truth, seed)
    wants_answers = observe or each_round is not None
    training = Training(local_epochs, batch, lr, optimizer, server.proximal, seed, wants_answers)
    config = {
        "data": task.name, "clients": clients, "rounds": rounds, "split": str(split), "strategy": str(strategy),
        "model": model if isinstance(model, str) else getattr(model, "__qualname__", type(model).__name__),
        "participation": participation, "local_epochs": local_epochs, "batch": batch, "lr": lr,
        "optimizer": optimizer, "engine": engine, "seed": seed, "timing": asdict(timing),
    }  # fmt: skip
    global_model = recipe.build()
    layout = Layout.of(global_model)
    check_layers(truth, layout)
    state_bytes = layout.bytes_of(layout.read(global_model).counters)
    clock = VirtualClock(timing, [len(part) * local_epochs for part in parts], state_bytes, seed)
    setup = Setup(
        task, shelf, truth, server, participation, local_epochs, _COPIES[optimizer], clock, seed, each_round
    )  # fmt: skip
    worker = _engine(engine, processes, (recipe, shelf, training))
    with (
        torch.enable_grad(),
        observed.opened(
            task.name, observe=observe, model=global_model, clients=clients, config=config,
            dir=dir, run=run, progress=progress,
        ) as federation,
        closing(worker),
    ):  # fmt: skip
        course = Course(setup, global_model, worker)
        history = tuple(course.play(number, log) for number, log in enumerate(federation.rounds(rounds), start=1))
    counts = {name: tuple(np.bincount(own, minlength=task.classes).tolist()) for name, own in own_labels.items()}
    return LabResult(task.name, course.layout.as_dict(course.state), history, counts, truth, federation.path)


def _engine(name: EngineName, processes: int, parts: Parts) -> Engine:
    if name == "stacked":
        if processes > 1:
            raise UsageError(f"engine='stacked' with processes={processes}", hint="it uses one process: leave it out")
        return Stacked(parts)
    return Loop(parts) if processes == 1 else Processes(parts, processes)


def _check(*, participation: float, lr: float, seed: int, **counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, int | np.integer) or value < 1:
            raise UsageError(f"{name}={value!r}", hint=f"{name} is a whole number from 1")
    if not 0 < participation <= 1:
        raise UsageError(f"participation={participation!r}", hint="a share of the clients: above 0, at most 1")
    if not (math.isfinite(lr) and lr > 0):
        raise UsageError(f"lr={lr!r}", hint="a learning rate is above 0")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise UsageError(f"seed={seed!r}", hint="a seed is a whole number from 0")
