"""Whose turn it is: the federated client and round that rows of this thread or task belong to."""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from typing import Any

from stethos.schema import NULL_I32

_FEW = 4


class TurnTotals:
    """What the steps of one client's turn add up to: the first losses are the incoming global model's."""

    __slots__ = ("evidence", "first_losses", "last_losses", "samples", "steps")

    def __init__(self) -> None:
        self.first_losses: list[float] = []
        self.last_losses: deque[float] = deque(maxlen=_FEW)
        self.samples = 0
        self.steps = 0
        self.evidence: Any = None  # what the turn shows from inside, see `federate.turn_evidence`

    def add(self, loss: float, samples: int) -> None:
        """One optimizer step; called on the training thread in every step of the turn."""
        if self.steps < _FEW:
            self.first_losses.append(loss)
        self.last_losses.append(loss)
        self.samples += samples
        self.steps += 1


Turn = tuple[int, int, TurnTotals | None]  # the client's name id, the round, and where its steps are added up
TURN: ContextVar[Turn] = ContextVar("stethos_turn", default=(NULL_I32, NULL_I32, None))
turn = TURN.get
