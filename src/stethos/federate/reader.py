"""Reads a round's updates as they come: each is copied at once, fingerprints are made of several together.

A small model's fingerprint is a few microseconds of arithmetic and a hundred of calls; made for a dozen updates
at once, the calls are shared. Of large updates fewer wait, so that what is kept of them stays in the cache.
"""

from __future__ import annotations

import numpy as np

from stethos.federate.fingerprint import (
    GLOBAL,
    Fingerprint,
    Seen,
    Vector,
    clear_odd,
    fingerprints_of,
    read_into,
    subtract,
)
from stethos.federate.sketch import Plan
from stethos.federate.structure import State

_KEPT = 1 << 18  # elements that wait to be made fingerprints of: a megabyte
_MOST = 64


class Reader:
    """The fingerprints of one round. Not for several threads at once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rows = np.empty((min(max(_KEPT // plan.read, 1), _MOST), plan.read), np.float32)
        self._seen: list[Seen] = []
        self._prints: list[Fingerprint] = []

    def read(self, state: State, client: str, base: Vector | None) -> None:
        """Read an update against the global model's row, None where it is a change already."""
        self._seen.append(read_into(self._plan, self._rows[len(self._seen)], base, state, client))
        if len(self._seen) == len(self._rows):
            self._make()

    def change_of(self, row: Vector, base: Vector | None, state: State) -> Fingerprint:
        """Of the global model from `base` to its new `row`, made together with the updates that wait."""
        change = self._rows[len(self._seen)]
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

    def _make(self) -> None:
        self._prints += fingerprints_of(self._plan, self._rows[: len(self._seen)], self._seen)
        self._seen = []
