"""Inside a client's turn: does it send what it trained?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stethos.replay.history import RecordedRound, State
from stethos.replay.trainer import Trainer

_CLOSE = 1e-3  # of the change's length: rounding between the engines stays below


@dataclass(frozen=True, slots=True)
class RetrainedTurn:
    """What was found inside a turn.

    `parting` is how far what was sent lies from what the training gives, in lengths of its change; from
    `_CLOSE` on the fault is not in the training. `label` and `samples` are those that do the harm, if leaving
    them out makes the round good: of `disputed` of them the model without the client says something else.
    They are only looked for in the lab (`is_searched`).
    """

    client: str
    round: int
    parting: float
    odd_step: int | None = None
    label: int | None = None
    samples: tuple[int, ...] = ()
    disputed: int = 0
    answer: int | None = None
    accuracy: float | None = None
    without_samples: float | None = None
    is_searched: bool = True

    @property
    def is_sent_as_trained(self) -> bool:
        return self.parting < _CLOSE


def compare_turn(trainer: Trainer, one: RecordedRound, client: str) -> RetrainedTurn:
    """Train the client's turn again with the user's trainer, and compare with what it sent."""
    (made,) = trainer.train(one.number, [client], lambda number: one.base)
    apart, change = _length(one.sent_by(client), made.state), _length(made.state, one.base)
    parting = apart / max(change, 1e-12)
    return RetrainedTurn(client, one.number, parting if np.isfinite(parting) else float("inf"), is_searched=False)


def _length(one: State, other: State) -> float:
    squares = [
        float((value.double() - other[name].double()).square().sum())
        for name, value in one.items()
        if value.is_floating_point() and name in other
    ]
    return float(np.sqrt(sum(squares)))
