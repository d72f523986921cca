"""What earlier rounds leave behind for the comparison with later ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from stethos.federate.fingerprint import Fingerprint

Vector = npt.NDArray[Any]
_BACK = 5
_MOST_CLIENTS = 10_000


class History:
    """What earlier rounds leave behind: sketches of the global model's changes and of each client's last update."""

    def __init__(self) -> None:
        self.changes: deque[Vector] = deque(maxlen=_BACK + 1)  # the newest last
        self.total: Vector | None = None
        self.own: dict[str, Vector] = {}

    def add(self, change: Vector, prints: Sequence[Fingerprint]) -> None:
        self.changes.append(change)
        self.total = change if self.total is None else self.total + change
        for one in prints:
            if one.is_finite and (one.client in self.own or len(self.own) < _MOST_CLIENTS):
                self.own[one.client] = one.sketch.copy()  # it is a row of a larger matrix

    def ways_back(self) -> list[Vector]:
        """From the present global model to those of 1, 2, ... rounds ago."""
        ways: list[Vector] = []
        for change in reversed(self.changes):
            ways.append(-change if not ways else ways[-1] - change)
        return ways[:_BACK]
