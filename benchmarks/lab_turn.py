"""What observing a federation of the lab costs a client's turn: turns of 2 ms, as in the tests, and longer ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale

Variant = Literal["bare", "answered", "observed"]
_VARIANTS: tuple[Variant, ...] = ("bare", "answered", "observed")
_TARGET = 1.03
_SIDE = 28
_LONG_STEP_US = 5000


@dataclass(frozen=True, slots=True)
class Federation:
    """Ten clients with 144 samples each; `rounds` are those that are timed."""

    name: str
    model: str
    rounds: int
    epochs: int = 1
    is_enlarged: bool = False

    @property
    def steps(self) -> int:
        """Of a client in a round."""
        return 5 * self.epochs


TURNS = (
    Federation("digits, mlp", "mlp", 20),
    Federation("digits, mlp, 20 local epochs", "mlp", 2, 20),
    Federation("digits, cnn", "cnn", 5),
    Federation("digits at 28x28, cnn", "cnn", 2, 1, True),
    Federation("digits at 28x28, cnn, 5 local epochs", "cnn", 1, 5, True),
)


def observing(scale: Scale, scratch: Path) -> Grid:
    rows, costs = [], []
    for number, one in enumerate(TURNS):
        say(f"observing the lab: {one.name}")
        times: dict[Variant, list[float]] = {variant: [] for variant in _VARIANTS}
        repeats = (2 if scale.is_quick else 7) if one.epochs * one.rounds < 10 else (3 if scale.is_quick else 11)
        for repeat in range(repeats):
            for variant, found in times.items():
                found.append(_turn_us(one, variant, scratch / f"turn-{number}-{repeat}-{variant}"))
        middle = {variant: statistics.median(found[1:]) for variant, found in times.items()}
        ratios = [b / a for a, b in zip(times["bare"][1:], times["observed"][1:], strict=True)]
        ratio, answers = statistics.median(ratios), middle["answered"] - middle["bare"]
        costs.append(middle["observed"] - middle["answered"])
        rows.append(
            [
                one.name, str(one.steps), f"{middle['bare'] * 1e-3:.1f}", f"{costs[-1]:.0f}", f"{max(answers, 0):.0f}",
                f"{ratio:.3f}", f"{min(ratios):.2f} to {max(ratios):.2f}", str(_TARGET),
                verdict(ratio, _TARGET, low=min(ratios), high=max(ratios)),
            ]
        )  # fmt: skip
    headings = [
        "10 clients", "steps a turn", "turn ms, bare", "recording us", "answers us", "x bare", "range", "target",
        "reached",
    ]  # fmt: skip
    return Grid("Observing a client's turn in the lab", headings, rows, [_NOTE, _fixed_cost(costs)])


_NOTE = (
    "CPU time of the process that trains, variants in turns, without the opening and closing of the run; a turn is a "
    "round's time by its clients. `Answers`: what the incoming global model says of the client's samples, for "
    "`client_rounds.confusion`: a forward pass over all of them, which a loop of one's own may leave out or shorten. "
    "`Recording` is everything else: the turn's rows, its optimizer and steps, the update's fingerprint and comparison."
)


def _fixed_cost(costs: Sequence[float]) -> str:
    """From the two federations that differ in the number of local epochs alone."""
    few, many = TURNS[0], TURNS[1]
    step_us = (costs[1] - costs[0]) / (many.steps - few.steps)
    turn_us = costs[0] - few.steps * step_us
    share = step_us / _LONG_STEP_US
    enough = f"{turn_us * 1e-3 / (_TARGET - 1 - share):.0f} ms" if share < _TARGET - 1 else "no length"
    return (
        f"Of recording, {turn_us:.0f} us are a turn's whatever its length, and {step_us:.0f} us each step's (first and "
        f"second row). With steps of {_LONG_STEP_US // 1000} ms, of which that is {share:.1%}, recording as a whole "
        f"stays below 3 % from turns of {enough} on."
    )


def _turn_us(one: Federation, variant: Variant, place: Path) -> float:
    """A round's CPU time by its clients, after one round to warm up."""
    from stethos.lab import observed
    from stethos.lab.clock import Timing
    from stethos.lab.course import Course
    from stethos.lab.prepare import LabChoices, engine_of, prepare
    from stethos.lab.split import IID

    data = _enlarged() if one.is_enlarged else "digits"
    choices = LabChoices(
        data, 10, one.rounds + 1, IID(), one.model, "fedavg", (), 1.0, one.epochs, 32, 0.1, "sgd", Timing(), 0, "loop"
    )
    made = prepare(choices, wants_answers=variant != "bare")
    worker = engine_of("loop", 1, made.parts)
    opened = observed.opened(
        "digits", observe=variant == "observed", model=made.model, trained=worker.model, clients=10, config={},
        dir=place, run=None, progress=False, capture=None, capture_bytes=None,
    )  # fmt: skip
    with opened as federation:
        course = Course(made.setup, made.model, worker)
        for number, log in enumerate(federation.rounds(one.rounds + 1), start=1):
            if number == 2:
                start = time.process_time()
            course.play(number, log)
        end = time.process_time()  # the iterator has ended the last round
    return (end - start) * 1e6 / (one.rounds * 10)


def _enlarged() -> object:
    """The digits at the size of MNIST's images."""
    from sklearn.datasets import load_digits

    from stethos.lab.data import Data

    images, labels = load_digits(return_X_y=True)
    place = (np.arange(_SIDE) * 8) // _SIDE
    large: NDArray[np.float32] = images.reshape(-1, 8, 8)[:, place][:, :, place].astype(np.float32)
    return Data.of(large / 16, labels, name="digits-28")
