"""What the clients of a federation showed from inside, by client: their turns and their data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.data_sketch import Sketch, sketch_in
from stethos.diagnose.window import Window
from stethos.store.frame import Frame
from stethos.turn_facts import unpacked

Array = npt.NDArray[np.float64]
_SAME = 0.02  # of their size: as exactly as sums in another order agree, with half precision and what is clipped
READS = {"evidence": frozenset({"federation", "round", "client", "kind", "value"})}


@dataclass(frozen=True, eq=False)
class InsideEvidence:
    """`turns` holds per client the facts of each round, `data` its sketches, the oldest first."""

    clients: tuple[str, ...]
    turns: Mapping[str, Mapping[int, Mapping[str, Any]]]
    data: Mapping[str, tuple[Sketch, ...]]

    @cached_property
    def rounds(self) -> tuple[int, ...]:
        return tuple(sorted({number for turns in self.turns.values() for number in turns}))

    def matrix(self, name: str) -> Array:
        """A fact as rounds x clients, NaN where it is not known; not to be changed."""
        if name not in self._matrices:
            self._matrices[name] = self._matrix(name)
        return self._matrices[name]

    @cached_property
    def _matrices(self) -> dict[str, Array]:
        return {}

    def only(self, places: Sequence[int] | npt.NDArray[np.intp]) -> InsideEvidence:
        """The same of some of the clients."""
        found = replace(self, clients=tuple(self.clients[place] for place in places))
        for name, values in self._matrices.items():
            found._matrices[name] = values[:, places]
            found._matrices[name].flags.writeable = False
        return found

    def _matrix(self, name: str) -> Array:
        found = np.full((len(self.rounds), len(self.clients)), np.nan)
        for row, facts_of_round in enumerate(self._facts):
            for column, facts in enumerate(facts_of_round):
                value = facts.get(name)
                if value is not None and isinstance(value, int | float):
                    found[row, column] = value
        found.flags.writeable = False
        return found

    @cached_property
    def _facts(self) -> list[list[Mapping[str, Any]]]:
        """By round and client."""
        mine = [self.turns.get(client, {}) for client in self.clients]
        return [[turns.get(number, {}) for turns in mine] for number in self.rounds]


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
                turns.setdefault(client, {})[number] = unpacked(facts)
        elif kind == "data" and (sketch := sketch_in(value, number)) is not None:
            data.setdefault(client, []).append(sketch)
    clients = tuple(sorted(turns.keys() | data.keys()))
    ordered = {client: _told_once(sorted(mine, key=lambda one: one.number)) for client, mine in data.items()}
    return InsideEvidence(clients, turns, ordered)


def _told_once(sketches: Sequence[Sketch]) -> tuple[Sketch, ...]:
    """Without those of samples that were sketched before: a worker that is new to a client tells all of them again."""
    kept: list[Sketch] = []
    for one in sketches:
        if not any(_is_same(one, other) for other in kept):
            kept.append(one)
    return tuple(kept)


def _is_same(one: Sketch, other: Sketch) -> bool:
    return (
        one.can_join(other)
        and one.classes == other.classes
        and np.array_equal(one.counts, other.counts)
        and bool(
            np.allclose(one.means, other.means, rtol=_SAME, atol=_SAME * float(np.abs(one.means).max(initial=0.0)))
        )
    )


def _rows(frame: Frame) -> Iterator[tuple[str, int, str, str]]:
    for client, number, kind, value in zip(frame["client"], frame["round"], frame["kind"], frame["value"], strict=True):
        if isinstance(client, str) and number == number and isinstance(value, str):
            yield client, int(number), str(kind), value
