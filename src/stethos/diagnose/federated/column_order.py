"""Inputs in another order: columns that are swapped, shifted by one or reversed, pictures that are turned.

Inputs of other people, or of another sensor, lie elsewhere in whatever order they are read. Columns in another order
lie where the others' do once they are put back, classes and relations between them included.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

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
    far: dict[int, tuple[float, float]] = {}
    for place, (mine, whole) in enumerate(zip(clients, references_of(clients, clients), strict=True)):
        if mine is not None and whole is not None and mine.kind == "numbers" and mine.n >= fewest:
            if mine.inputs >= _FEWEST_INPUTS and (told := _distances(mine, whole)) is not None:
                far[place] = told
    if len(far) < _FEWEST_CLIENTS:
        return found
    places = list(far)
    now, best = np.array([far[place] for place in places]).T
    usual = float(middle_of(now))
    chance = np.array([2.0 / one.n * one.inputs for place in places if (one := clients[place]) is not None]) ** 0.5
    spread = np.hypot(_SIGMA * float(middle_of(np.abs(now - usual))) + _ROOM * usual, chance)
    times = np.maximum(now - usual, spread) / np.maximum(best - usual, spread)
    found[places] = np.minimum(times / _TIMES, MOST)
    return found


def _distances(mine: Sketch, whole: Sketch) -> tuple[float, float] | None:
    """The mean squared distance of its samples from where the others' of their class lie: as they are, and at best."""
    size, labels = mine.inputs, whole.classes or (0,)
    shared = [place for place, label in enumerate(mine.classes or (0,)) if label in labels]
    if not shared or float(mine.counts[shared].sum()) < mine.n / 2:
        return None
    counts, own = mine.counts[shared], mine.means[shared][:, :size]
    theirs = whole.means[[labels.index((mine.classes or (0,))[place]) for place in shared]][:, :size]
    usual, weight = whole.covariance[:size, :size], counts / counts.sum()
    precision = np.linalg.inv(usual + np.diag(np.full(size, _HARDLY_VARIES * float(np.mean(np.diag(usual))))))
    moment = mine.scatter[:size, :size] / mine.n + (weight[:, None] * own).T @ own
    across = (weight[:, None] * own).T @ theirs @ precision
    fixed = float(weight @ ((theirs @ precision) * theirs).sum(1))
    orders = _orders(mine, size)
    now = float((precision * moment).sum() - 2 * np.trace(across)) + fixed
    whole_orders = [
        float((precision * moment[np.ix_(order, order)]).sum() - 2 * across[order, np.arange(size)].sum()) + fixed
        for order in orders
    ]
    return now, min(now, now + float(_swaps(moment, across, precision).min()), *whole_orders)


def _orders(mine: Sketch, size: int) -> list[npt.NDArray[np.intp]]:
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
