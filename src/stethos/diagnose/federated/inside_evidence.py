"""What the clients of a federation showed from inside, by client: their turns and their data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.data_sketch import Sketch, sketch_in
from stethos.diagnose.window import Window
from stethos.store.frame import Frame

Array = npt.NDArray[np.float64]
READS = {"evidence": frozenset({"federation", "round", "client", "kind", "value"})}


@dataclass(frozen=True, eq=False)
class InsideEvidence:
    """`turns` holds per client the facts of each round, `data` its sketches, the oldest first."""

    clients: tuple[str, ...]
    turns: Mapping[str, Mapping[int, Mapping[str, Any]]]
    data: Mapping[str, tuple[Sketch, ...]]

    @property
    def rounds(self) -> tuple[int, ...]:
        return tuple(sorted({number for turns in self.turns.values() for number in turns}))

    def matrix(self, name: str) -> Array:
        """A fact as rounds x clients, NaN where it is not known."""
        rounds = self.rounds
        found = np.full((len(rounds), len(self.clients)), np.nan)
        for column, client in enumerate(self.clients):
            mine = self.turns.get(client, {})
            for row, number in enumerate(rounds):
                value = mine.get(number, {}).get(name)
                if isinstance(value, int | float):
                    found[row, column] = value
        return found


def inside_of(window: Window) -> dict[str | None, InsideEvidence]:
    """The evidence of each federation of a run, by its name."""
    frame = window.frame("evidence")
    groups = frame.groups("federation") if "federation" in frame else {}
    return {str(name): _inside(mine) for name, mine in groups.items()}


def _inside(frame: Frame) -> InsideEvidence:
    turns: dict[str, dict[int, Mapping[str, Any]]] = {}
    data: dict[str, list[Sketch]] = {}
    for client, number, kind, value in _rows(frame):
        if kind == "turn":
            try:
                facts = json.loads(value)
            except ValueError:
                continue
            if isinstance(facts, dict):
                turns.setdefault(client, {})[number] = facts
        elif kind == "data" and (sketch := sketch_in(value, number)) is not None:
            data.setdefault(client, []).append(sketch)
    clients = tuple(sorted(turns.keys() | data.keys()))
    ordered = {client: tuple(sorted(mine, key=lambda one: one.number)) for client, mine in data.items()}
    return InsideEvidence(clients, turns, ordered)


def _rows(frame: Frame) -> Iterator[tuple[str, int, str, str]]:
    for client, number, kind, value in zip(frame["client"], frame["round"], frame["kind"], frame["value"], strict=True):
        if isinstance(client, str) and number == number and isinstance(value, str):
            yield client, int(number), str(kind), value
