"""`federate`: a whole federation on real data, in this process, with faults on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch

from stethos.act.action import Mode, parse_mode
from stethos.act.correction import Corrector
from stethos.act.recording import recorded_corrector
from stethos.lab import observed
from stethos.lab.clock import Timing
from stethos.lab.course import Course
from stethos.lab.data import Data
from stethos.lab.fault import Fault
from stethos.lab.model import Factory
from stethos.lab.prepare import EngineName, LabChoices, check_count, engine_of, prepare
from stethos.lab.result import Exchange, LabResult
from stethos.lab.server import Strategy
from stethos.lab.spec import config_of, spec_of
from stethos.lab.split import IID, Split
from stethos.settings import CaptureMode


@contextmanager
def one_thread() -> Iterator[None]:
    """Small matrices gain nothing from several threads, and one thread adds up in the same order everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
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
    capture: CaptureMode | None = None,
    capture_bytes: int | None = None,
    correct: Mode | Corrector = "off",
    overhead: float | None = None,
) -> LabResult:
    """Train a model over clients "c0", "c1", ... and return what came of it; by default it is recorded as a run.

    The same call gives the same bits: observed or not, in one process or in several, whatever random numbers were
    drawn before. The engine "stacked" trains all clients of a round at once, for many runs of small models; it agrees
    with "loop" up to rounding, and has no step rows. `each_round` is shown what the server saw, before it aggregates.
    `capture` and `capture_bytes` are those of `stethos.federation`: with "all", `stethos replay` repeats any round
    and any client's training. `correct` is "off", "dry-run" or "on": see `docs/correcting.md`. `overhead` is that of
    `watch`.
    """
    choices = LabChoices(
        data, clients, rounds, split, model, strategy, tuple(faults), participation, local_epochs, batch, lr, optimizer,
        timing, seed, engine,
    )  # fmt: skip
    check_count("processes", processes)
    mode = correct.mode if isinstance(correct, Corrector) else parse_mode(correct)
    wants_answers = observe or each_round is not None or mode != "off"
    made = prepare(choices, wants_answers=wants_answers, each_round=each_round)
    task = made.task
    worker = engine_of(engine, processes, made.parts)
    with (
        torch.enable_grad(),
        observed.opened(
            task.name, observe=observe, model=made.model, trained=worker.model, clients=clients,
            config=config_of(choices, task), dir=dir, run=run, progress=progress, capture=capture,
            capture_bytes=capture_bytes, overhead=overhead,
        ) as federation,
        closing(worker),
    ):  # fmt: skip
        federation.note_settings({"lab": spec_of(choices, made)})
        corrector = correct if isinstance(correct, Corrector) else None
        if corrector is None and mode != "off":
            corrector = recorded_corrector(mode, task.name, federation.path)
        course = Course(made.setup, made.model, worker, corrector)
        history = tuple(course.play(number, log) for number, log in enumerate(federation.rounds(rounds), start=1))
    counts = {name: tuple(np.bincount(own, minlength=task.classes).tolist()) for name, own in made.labels.items()}
    return LabResult(task.name, course.layout.as_dict(course.state), history, counts, made.faults, federation.path)
