"""Single columns of clients' samples side by side: each beside those of all others, for all clients at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.data_sketch import Sketch
from stethos.diagnose.federated.standing_out import around_others, second_of_others

Array = npt.NDArray[np.float64]
_FEWEST_OTHERS = 3
_AT_ONCE = 1 << 21  # numbers


class Scales(NamedTuple):
    """Middles and mean deviations of columns, and the medians of these at the others: client x column.

    `places` says which clients they are of, `differ` how far the others' middles lie from their median.
    """

    places: npt.NDArray[np.intp]
    sketches: tuple[Sketch, ...]
    middle: Array
    deviation: Array
    usual_middle: Array
    usual_deviation: Array
    differ: Array


class Values(NamedTuple):
    """The two commonest values of columns and their shares: client x rank x column."""

    places: npt.NDArray[np.intp]
    sketches: tuple[Sketch, ...]
    atoms: Array
    shares: Array

    def elsewhere(self, rank: int) -> Iterator[tuple[slice, Array]]:
        """How common each client's value is at each of the others, the rarest first, some clients at a time.

        Client x other x column; at most as common as what is told there, where it is not told.
        """
        count, _, width = self.atoms.shape
        some = max(1, _AT_ONCE // max(count * width, 1))
        for start in range(0, count, some):
            part = slice(start, min(start + some, count))
            is_same = self.atoms[None] == self.atoms[part, rank][:, None, None]
            same = np.where(is_same, self.shares[None], 0.0).max(2)
            same = np.where(same > 0, same, self.shares[None, :, 1])
            same[np.arange(part.stop - start), np.arange(start, part.stop)] = np.inf
            yield part, np.sort(same, axis=1)[:, :-1]


@lru_cache(maxsize=4)  # rules and weighing ask the same
def scales_of(clients: tuple[Sketch | None, ...]) -> tuple[Scales, ...]:
    """One for each group of at least four clients whose samples look alike and who tell their scale."""
    found = []
    for places, sketches in _alike(clients, lambda one: one.deviation):
        middle, deviation = (np.array([getattr(one, name) for one in sketches]) for name in ("middle", "deviation"))
        usual, differ = around_others(middle)
        found.append(Scales(places, sketches, middle, deviation, usual, around_others(deviation)[0], differ))
    return tuple(found)


@lru_cache(maxsize=4)  # rules and weighing ask the same
def values_of(clients: tuple[Sketch | None, ...]) -> tuple[Values, ...]:
    """One for each group of at least four clients whose samples look alike and who tell their commonest values."""
    return tuple(
        Values(places, sketches, *(np.array([getattr(one, name) for one in sketches]) for name in names))
        for names in [("atoms", "atom_shares")]
        for places, sketches in _alike(clients, lambda one: one.atoms)
    )


def bounds_of(sketches: Sequence[Sketch]) -> tuple[Array, Array] | None:
    """For each client the second smallest and the second largest value of the others, by column; None if not told."""
    if any(one.low is None or one.high is None for one in sketches):
        return None
    low, high = (np.array([getattr(one, name) for one in sketches]) for name in ("low", "high"))
    return -second_of_others(-low), second_of_others(high)


def _alike(
    clients: Sequence[Sketch | None], told: Callable[[Sketch], Any]
) -> Iterator[tuple[npt.NDArray[np.intp], tuple[Sketch, ...]]]:  # fmt: skip
    left = [place for place, one in enumerate(clients) if one is not None and told(one) is not None]
    while left:
        first = clients[left[0]]
        assert first is not None
        places, sketches = [], []
        for place in left:
            one = clients[place]
            if one is not None and one.can_join(first) and told(one).shape == told(first).shape:
                places.append(place)
                sketches.append(one)
        left = [place for place in left if place not in set(places)]
        if len(places) > _FEWEST_OTHERS:
            yield np.array(places), tuple(sketches)
