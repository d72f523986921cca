"""Inputs in another order: columns that are swapped, shifted by one or reversed, pictures that are turned or negatives.

Inputs of other people, or of another sensor, lie elsewhere in whatever order they are read. Columns in another order
lie where the others' do once they are put back, classes and relations between them included. So do dark for bright.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.common_values import TABLE
from stethos.diagnose.federated.data_sketch import Sketch, fewest_samples
from stethos.diagnose.federated.reference import references_of
from stethos.diagnose.federated.standing_out import middle_of
from stethos.diagnose.federated.unlikeness import MOST

Array = npt.NDArray[np.float64]
_FEWEST_SAMPLES, _FEWEST_INPUTS, _FEWEST_CLIENTS = 15, 3, 4
_SHIFTS = (1, -1, 2, -2)
_PICTURE = 16  # inputs and more, in rows and columns
_SIGMA = 1.4826
_ROOM = 0.1  # of the usual distance
_HARDLY_VARIES = 0.1  # of the mean variance: one rare dot beside an empty pixel is far from all others
_TIMES = 2.5  # so many times nearer once it is put back is what stands out


@lru_cache(maxsize=2)  # rules and weighing ask the same
def column_order(clients: tuple[Sketch | None, ...]) -> Array:
    """How much nearer to the others' samples a client's lie in another order of its inputs; 1 is what stands out."""
    found = np.zeros(len(clients))
    fewest = fewest_samples(clients, _FEWEST_SAMPLES)
    compared = {
        place: one for place, (mine, whole) in enumerate(zip(clients, references_of(clients, clients), strict=True))
        if mine is not None and whole is not None and mine.kind == "numbers" and mine.n >= fewest
        and mine.inputs >= _FEWEST_INPUTS and (one := _moments(mine, whole)) is not None
    }  # fmt: skip
    if len(compared) < _FEWEST_CLIENTS or len({one.own.shape for one in compared.values()}) > 1:
        return found
    moments, places = list(compared.values()), np.array(list(compared))
    precision = _precision(moments)
    now = np.array([one.distance(precision) for one in moments])
    usual, spread = _usual(now, moments)
    precision = _precision([one for one, far in zip(moments, now > usual + spread, strict=True) if not far])
    now = np.array([one.distance(precision) for one in moments])
    usual, spread = _usual(now, moments)
    far = np.flatnonzero(now > usual + spread)
    best = now.copy()
    ends = _ends([one for place in places.tolist() if (one := clients[place]) is not None])
    best[far] = [moments[place].least(precision, now[place], ends) for place in far.tolist()]
    found[places] = np.minimum(np.maximum(now - usual, spread) / np.maximum(best - usual, spread) / _TIMES, MOST)
    return found


class _Moments(NamedTuple):
    """Of a client's samples: their second moments, those with where the others' of their class lie, and of these."""

    own: Array
    across: Array
    others: Array
    within: Array  # of its samples around where its own of their class lie, a sum
    samples: float
    mean: Array  # of its samples, and of the others' of their classes
    usual: Array

    def distance(self, precision: Array) -> float:
        """The mean squared distance from where the others' samples of the same class lie."""
        return float((precision * (self.own - 2 * self.across + self.others)).sum())

    def least(self, precision: Array, now: float, ends: float | None) -> float:
        """The same in the best of other orders, or as a negative: `ends` are the smallest and the largest input."""
        size, across = len(self.own), self.across @ precision
        rest = now - float((precision * self.own).sum()) + 2 * float(np.trace(across))
        found = [now + float(_swaps(self.own, across, precision).min())]
        for order in _orders(size):
            along = 2 * float(across[order, np.arange(size)].sum())
            found.append(float((precision * self.own[np.ix_(order, order)]).sum()) - along + rest)
        if ends is not None:
            found.append(self._negative(precision, ends))
        return min(now, *found)

    def _negative(self, precision: Array, ends: float) -> float:
        whole = np.full(len(self.own), ends)
        turned = np.outer(whole, whole - self.mean)
        own, across = self.own + turned - np.outer(self.mean, whole), np.outer(whole, self.usual) - self.across
        return float((precision * (own - 2 * across + self.others)).sum())


def _ends(clients: Sequence[Sketch]) -> float | None:
    """The sum of the smallest and the largest input, as features are; None but for pictures.

    A table that is around 0 is its own negative, more or less.
    """
    ranges = [one.range for one in clients if one.range is not None]
    return float(np.arcsinh(middle_of(np.array(ranges))).sum()) if ranges and clients[0].width > TABLE else None


def _moments(mine: Sketch, whole: Sketch) -> _Moments | None:
    """None where most samples are of classes that nobody else has."""
    size, labels = mine.inputs, whole.classes or (0,)
    shared = [place for place, label in enumerate(mine.classes or (0,)) if label in labels]
    if not shared or float(mine.counts[shared].sum()) < mine.n / 2:
        return None
    own, weight = mine.means[shared][:, :size], mine.counts[shared] / mine.counts[shared].sum()
    theirs = whole.means[[labels.index((mine.classes or (0,))[place]) for place in shared]][:, :size]
    within = mine.scatter[:size, :size]
    turned = (weight[:, None] * own).T
    return _Moments(
        within / mine.n + turned @ own, turned @ theirs, (weight[:, None] * theirs).T @ theirs, within, mine.n,
        weight @ own, weight @ theirs,
    )  # fmt: skip


def _precision(moments: Sequence[_Moments]) -> Array:
    usual = np.sum([one.within for one in moments], axis=0) / sum(one.samples for one in moments)
    room = _HARDLY_VARIES * float(np.mean(np.diag(usual))) + 1e-9
    return np.asarray(np.linalg.inv(usual + room * np.eye(len(usual))))


def _usual(now: Array, moments: Sequence[_Moments]) -> tuple[float, Array]:
    """The distance of the median client, and by how much that of each may differ."""
    usual = float(middle_of(now))
    chance = np.sqrt([2.0 / one.samples * len(one.own) for one in moments])
    return usual, np.hypot(_SIGMA * float(middle_of(np.abs(now - usual))) + _ROOM * usual, chance)


def _orders(size: int) -> list[npt.NDArray[np.intp]]:
    """Shifted and reversed; pictures of one channel also with rows for columns, or turned by a quarter."""
    inputs = np.arange(size)
    found = [np.roll(inputs, shift) for shift in _SHIFTS] + [inputs[::-1]]
    side = round(size**0.5)
    if size >= _PICTURE and side * side == size:
        square = inputs.reshape(side, side)
        found += [square.T.reshape(-1), np.rot90(square).reshape(-1), np.rot90(square, -1).reshape(-1)]
    return found


def _swaps(moment: Array, across: Array, precision: Array) -> Array:
    """By how much the distance changes where two inputs are put in each other's place, for each two."""
    along, own, sure = precision @ moment, np.diag(moment), np.diag(precision)
    change = along + along.T - np.diag(along)[:, None] - np.diag(along)
    # without what the two inputs have with each other and with themselves
    change -= sure[:, None] * (moment - own[:, None]) + precision * (own[:, None] - moment)
    change -= precision * (own - moment) + sure * (moment - own)
    squares = (sure[:, None] - sure) * (own - own[:, None])
    return np.asarray(2 * change + squares - 2 * (across + across.T - np.diag(across)[:, None] - np.diag(across)))
