"""What each client's data are compared with: the samples of all others, as one sketch.

Of all clients together, not of each anew: sums over those before a client and over those behind it add up to the sums
over all but this one, and nothing is subtracted, so that a client with huge numbers leaves no rounding in the others'.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.data_sketch import Sketch

Array = npt.NDArray[np.float64]
FEWEST_OTHERS = 3
_MANY = 256  # from so many clients on, leaving one out moves the others' samples by nothing that counts
_ASKED_AGAIN = 3  # rules and weighing ask the same, of all clients and of those who are not accused


def references_of(clients: Sequence[Sketch | None], typical: Sequence[Sketch | None]) -> tuple[Sketch | None, ...]:
    """For each client the samples of the other `typical` ones; None where fewer than three can be joined with its."""
    return _references_of(tuple(clients), tuple(typical))


@lru_cache(maxsize=_ASKED_AGAIN)
def _references_of(
    clients: tuple[Sketch | None, ...], typical: tuple[Sketch | None, ...]
) -> tuple[Sketch | None, ...]:  # fmt: skip
    found: list[Sketch | None] = [None] * len(clients)
    left = [place for place, one in enumerate(clients) if one is not None]
    while left:
        first = clients[left[0]]
        assert first is not None
        alike = [place for place in left if (one := clients[place]) is not None and one.can_join(first)]
        left = [place for place in left if place not in set(alike)]
        places = [place for place, one in enumerate(typical) if one is not None and one.can_join(first)]
        sums = _Sums([one for place in places if (one := typical[place]) is not None]) if places else None
        for place in alike:
            is_among = place in places
            if sums is not None and len(places) - is_among >= FEWEST_OTHERS:
                found[place] = sums.without(places.index(place) if is_among else None)
    return tuple(found)


class _Sums:
    """Counts, sums and outer products of sketches, around the usual place of each class."""

    def __init__(self, sketches: Sequence[Sketch]) -> None:
        self._first = sketches[0]
        self.count = len(sketches)
        self._whole: Sketch | None = None
        labels = sorted({label for one in sketches for label in one.classes or (0,)})
        self._labels, places = labels, {label: place for place, label in enumerate(labels)}
        counts = np.zeros((self.count, len(labels)))
        means = np.full((self.count, len(labels), self._first.features), np.nan)
        for row, one in enumerate(sketches):
            at = [places[label] for label in one.classes or (0,)]
            counts[row, at], means[row, at] = one.counts, one.means
        self._usual = np.nanmedian(means, axis=0)  # with a sum around zero, inputs far from it would lose digits
        apart = np.nan_to_num(means - self._usual)
        moved = counts[:, :, None] * apart
        scatter = np.array([one.scatter for one in sketches]) + moved.transpose(0, 2, 1) @ apart
        self._before = [_running(one) for one in (counts, moved, scatter)]
        self._behind = [_running(one[::-1])[::-1] for one in (counts, moved, scatter)]

    def without(self, place: int | None) -> Sketch:
        """All but one of them, or all; where there are many that is the same."""
        if place is not None and self.count < _MANY:
            return self._sketch(
                *(one[place] + other[place + 1] for one, other in zip(self._before, self._behind, strict=True))
            )
        if self._whole is None:
            self._whole = self._sketch(*(one[-1] for one in self._before))
        return self._whole

    def _sketch(self, counts: Array, moved: Array, scatter: Array) -> Sketch:
        is_there = counts > 0
        sizes = counts[is_there]
        means = moved[is_there] / sizes[:, None]
        together = scatter - (sizes[:, None] * means).T @ means
        first = self._first
        classes = None if first.classes is None else tuple(np.array(self._labels)[is_there].tolist())
        return Sketch(
            first.number, first.kind, first.width, float(sizes.sum()), first.targets, classes, sizes,
            means + self._usual[is_there], together, products=first.products,
        )  # fmt: skip


def _running(values: Array) -> Array:
    """Sums of the first none, one, two and so on."""
    return np.concatenate([np.zeros_like(values[:1]), values.cumsum(0)])
