"""Reads a round's updates as they come: each is copied at once, fingerprints are made of several together.

A small model's fingerprint is a few microseconds of arithmetic and a hundred of calls; made for a dozen updates
at once, the calls are shared. Of large updates fewer wait, so that what is kept of them stays in the cache.
"""

from __future__ import annotations

import numpy as np

from stethos.federate.desk import Desk
from stethos.federate.fingerprint import (
    GLOBAL,
    Fingerprint,
    Seen,
    Vector,
    are_moderate,
    clear,
    clear_odd,
    fingerprints_of,
    odd_in_row,
    read_into,
    subtract,
)
from stethos.federate.sketch import Plan
from stethos.federate.structure import State


class Reader:
    """The fingerprints of one round. Not for several threads at once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._desk: Desk | None = None
        self._seen: list[Seen] = []
        self._raw: list[tuple[int, Vector | None]] = []  # rows as they came, and what is to be subtracted from them
        self._prints: list[Fingerprint] = []

    def read(self, state: State, client: str, base: Vector | None) -> None:
        """Read an update against the global model's row, None where it is a change already."""
        number, desk = len(self._seen), self._taken_desk()
        if desk.copy_plain(number, state):
            self._seen.append(Seen(client))
            self._raw.append((number, base))
        else:
            self._seen.append(read_into(self._plan, desk.rows[number], base, state, client))
        if len(self._seen) == len(desk.rows):
            self._make()

    def change_of(self, row: Vector, base: Vector | None, state: State) -> Fingerprint:
        """Of the global model from `base` to its new `row`, made together with the updates that wait."""
        change = self._taken_desk().rows[len(self._seen)]
        np.copyto(change, row)
        if base is not None:
            subtract(change, base)
        self._seen.append(Seen(GLOBAL, odd=clear_odd(self._plan, change, state, GLOBAL)))
        self._make()
        return self._prints.pop()

    def prints(self) -> list[Fingerprint]:
        """Those of the updates so far, in the order they came; the list itself, which may be changed."""
        if self._seen:
            self._make()
        return self._prints

    def close(self) -> None:
        """The round is over: the next one may use its rows."""
        self.prints()
        desk, self._desk = self._desk, None
        if desk is not None:
            desk.give_back()

    def _taken_desk(self) -> Desk:
        if self._desk is None:
            self._desk = Desk.taken(self._plan)
        return self._desk

    def _make(self) -> None:
        rows = self._taken_desk().rows[: len(self._seen)]
        if self._raw:
            self._finish_raw(rows)
        self._prints += fingerprints_of(self._plan, rows, self._seen)
        self._seen, self._raw = [], []

    def _finish_raw(self, rows: Vector) -> None:
        """What `read_into` does to one row, for those that were copied as they came."""
        numbers, base = [number for number, _ in self._raw], self._raw[0][1]
        if len(numbers) == numbers[-1] + 1 and all(one is base for _, one in self._raw):  # mostly
            block = rows[: len(numbers)]
            if are_moderate(block) and (base is None or are_moderate(base)):
                if base is not None:
                    np.subtract(block, base, out=block)
                return
        for number, base in self._raw:
            odd = odd_in_row(self._plan, rows[number])
            if base is not None:
                subtract(rows[number], base)
            if clear(rows[number]):
                self._seen[number] = Seen(self._seen[number].client, odd=odd)
