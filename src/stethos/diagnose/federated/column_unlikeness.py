"""How a client's single inputs differ from the others': one column that is wrong is lost in a mean over all of them.

A site with other people differs in many inputs. A broken column stands out alone: take one or two columns away, and the
client is like the others. Everything is compared with the median client, not with all samples together, of which two
faulty clients may hold most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.common_values import TABLE
from stethos.diagnose.federated.data_sketch import Sketch, fewest_samples
from stethos.diagnose.federated.standing_out import middle_of
from stethos.diagnose.federated.unlikeness import MOST, relative

Array = npt.NDArray[np.float64]
_FEWEST_SAMPLES, _FEWEST_COLUMNS, _FEWEST_CLIENTS, _FEWEST_OF_CLASS = 15, 4, 4, 3
_SIGMA = 1.4826
_BETWEEN = 0.05  # what relations differ by between honest clients, as a correlation; places and spreads the same
_CLASSES_DIFFER = 0.3  # the same by class: who has another mix of them is judged less surely
_ANOTHER_MIX = 0.5  # from so many samples of other classes on nothing is told
_FLOOR = 1.0  # standard deviations: the largest of many
_TAKEN_AWAY, _MANY_CHANGED = 2, 4.0  # columns; times as much as counts against it, where others are odd as well
_NO_SPREAD = 0.02  # of the usual variance: then no relation can be told
_LARGEST, _LEAST = 40.0, 1e-9
_WITHIN = 2.0  # mean deviations: so far off a half of samples may lie that was chosen
_OFTEN, _RARELY, _FEWEST_ALIKE = 0.2, 0.1, 8  # share of the commonest value, here and elsewhere; samples with it
_CONTINUOUS, _OF_FEW, _ALL = 0.25, 0.5, 0.99
_TIMES = 2.5  # so that 1 is what stands out: a value in 40 % of samples


def column_unlikeness(clients: Sequence[Sketch | None]) -> Mapping[str, Array]:
    """`joint`: relations of one input to the others; `link`: to the classes; `spread`: how far it reaches.

    `fixed` says how many inputs, in which share of samples, have one value.
    """
    return _column_unlikeness(tuple(clients))


@lru_cache(maxsize=2)  # rules and weighing ask the same
def _column_unlikeness(clients: tuple[Sketch | None, ...]) -> Mapping[str, Array]:
    found = {name: np.zeros(len(clients)) for name in ("joint", "link", "spread", "fixed")}
    known = [place for place, one in enumerate(clients) if one is not None and one.kind == "numbers"]
    known = [
        place
        for place in known
        if (one := clients[place]) is not None and one.n >= fewest_samples(clients, _FEWEST_SAMPLES)
    ]
    if len(known) < _FEWEST_CLIENTS:
        return found
    first = clients[known[0]]
    assert first is not None
    mine = [one for place in known if (one := clients[place]) is not None and one.can_join(first)]
    if len(mine) < len(known) or first.inputs < _FEWEST_COLUMNS or first.width > TABLE:
        return found
    for name, values in (("joint", _relations(mine)), ("link", _links(mine)), ("spread", _spreads(mine))):
        if values is not None:
            found[name][known] = relative(values, _FLOOR)
    found["fixed"][known] = np.minimum(_fixed(mine), MOST)
    return found


def _relations(clients: Sequence[Sketch]) -> Array | None:
    """How far slopes between inputs, within classes, are from the median client's: the part of one or two columns.

    Slopes of other inputs on one stay as they are whatever samples are chosen by it.
    """
    size = clients[0].inputs
    free = np.array([max(one.n - len(one.counts), 1.0) for one in clients])
    own = np.array([one.scatter[:size, :size] for one in clients]) / free[:, None, None]
    varies = np.diagonal(own, axis1=1, axis2=2)  # client x column
    usual = middle_of(varies)
    is_used = usual > 1e-3 * np.median(usual)
    if is_used.sum() < _FEWEST_COLUMNS:
        return None
    own, varies, usual = own[:, is_used][:, :, is_used], varies[:, is_used], usual[is_used]
    wide = np.maximum(varies, _NO_SPREAD * usual)
    slopes = own / wide[:, None, :]  # of the row on the column
    slope = middle_of(slopes)
    left = middle_of(varies[:, :, None] - own * slopes)
    left = np.maximum(left, 0.05 * usual[:, None]) * np.maximum(varies / usual, 1.0)[:, :, None]
    apart = np.abs(own - slope * wide[:, None, :]) / np.sqrt(wide[:, None, :] * left)
    apart[:, np.arange(len(usual)), np.arange(len(usual))] = 0.0
    apart *= (varies >= _NO_SPREAD * usual)[:, None, :]
    mixes = _other_mixes(clients)
    told = np.maximum(1 - mixes / _ANOTHER_MIX, 0.0)
    return _of_few_columns(_in_deviations(apart, 1 / free + (_CLASSES_DIFFER * mixes) ** 2)) * told


def _other_mixes(clients: Sequence[Sketch]) -> Array:
    """Which share of a client's samples is of other classes than at all clients together."""
    labels = sorted({label for one in clients for label in one.classes or ()})
    shares = np.zeros((len(clients), max(len(labels), 1)))
    for row, one in enumerate(clients):
        for label, count in zip(one.classes or (), one.counts, strict=False):
            shares[row, labels.index(label)] = count / one.n
    return np.asarray(0.5 * np.abs(shares - shares.mean(0)).sum(1))


def _in_deviations(apart: Array, by_chance: Array) -> Array:
    """Distances from the median client in standard deviations: of chance, and of what clients differ by."""
    chance = by_chance.reshape(-1, *(1,) * (apart.ndim - 1))
    between = np.maximum((_SIGMA * middle_of(apart)) ** 2 - float(np.median(by_chance)), 0.0)
    return np.asarray(np.minimum(apart / np.sqrt(chance + between + _BETWEEN**2), _LARGEST))


def _of_few_columns(far: Array) -> Array:
    """The largest of each client, less the largest that is left where the oddest columns are taken away.

    Whoever chooses samples changes relations between all inputs: then more is left than at the median client.
    """
    whole = far.max((1, 2))
    rest = far.copy()
    rows = np.arange(len(far))
    for _ in range(_TAKEN_AWAY):
        oddest = np.maximum((rest**2).sum(1), (rest**2).sum(2)).argmax(1)
        rest[rows, oddest], rest[rows, :, oddest] = 0.0, 0.0
    left = rest.max((1, 2))
    return np.asarray(np.maximum(whole - left - _MANY_CHANGED * np.maximum(left - np.median(left), 0.0), 0.0))


def _links(clients: Sequence[Sketch]) -> Array | None:
    """How differently the oddest input goes with the classes, beyond what the third oddest does."""
    size = clients[0].inputs
    labels = sorted({label for one in clients for label in one.classes or ()})
    if len(labels) < 2:
        return None
    means = np.full((len(clients), len(labels), size), np.nan)
    counts = np.zeros((len(clients), len(labels)))
    for row, one in enumerate(clients):
        for label, count, mean in zip(one.classes or (), one.counts, one.means, strict=True):
            if count >= _FEWEST_OF_CLASS:
                at = labels.index(label)
                means[row, at], counts[row, at] = mean[:size], count
    is_told = (counts > 0).sum(0) >= _FEWEST_CLIENTS
    if is_told.sum() < 2:
        return None
    means, counts = means[:, is_told], counts[:, is_told]
    usual = np.nanmedian(means, axis=0)
    varies = middle_of(np.array([np.diag(one.scatter)[:size] / max(one.n - len(one.counts), 1.0) for one in clients]))
    is_used = varies > 1e-3 * np.median(varies)
    apart = np.where(counts[:, :, None] > 0, means - usual, 0.0)[:, :, is_used] / np.sqrt(varies[is_used])
    total = np.maximum(counts.sum(1), 1.0)[:, None]
    middle = (counts[:, :, None] * apart).sum(1) / total
    spread = (counts[:, :, None] * (apart - middle[:, None]) ** 2 * (counts[:, :, None] > 0)).sum(1) / total
    classes = (counts > 0).sum(1)
    far = np.sqrt(np.maximum(spread - np.maximum(classes - 1, 0)[:, None] / total, 0.0))
    far[classes < 2] = 0.0
    return _beyond_third(_in_deviations(far, np.maximum(classes - 1, 1) / total[:, 0]))


def _spreads(clients: Sequence[Sketch]) -> Array | None:
    """How much farther the oddest column reaches than at the others, or lies outside, beyond what the third does.

    Less spread does not count, nor a place within the others': who chooses samples by a column moves and narrows it.
    """
    if any(one.deviation is None or one.middle is None for one in clients):
        return None
    if len({one.deviation.shape for one in clients if one.deviation is not None}) != 1:
        return None
    deviation, middle = (np.array([getattr(one, name) for one in clients], float) for name in ("deviation", "middle"))
    count = np.array([one.n for one in clients])
    usual = middle_of(deviation)
    is_used = usual > _LEAST
    if is_used.sum() < _FEWEST_COLUMNS:
        return None
    usual, deviation, middle = usual[is_used], deviation[:, is_used], middle[:, is_used]
    wider = np.maximum(np.log(np.maximum(deviation, _LEAST) / usual), 0.0)
    moved = np.log1p(np.maximum(np.abs(middle - middle_of(middle)) / usual - _WITHIN, 0.0))
    return _beyond_third(_in_deviations(np.maximum(wider, moved), 0.6 / count))


def _beyond_third(far: Array) -> Array:
    """How much farther the farthest column lies than twice the distance of the third."""
    ordered = np.sort(far, axis=1)
    return np.asarray(np.maximum(ordered[:, -1] - 2 * ordered[:, -1 - _TAKEN_AWAY], 0.0))


def _fixed(clients: Sequence[Sketch]) -> Array:
    """In which share of samples inputs have one value, of inputs that hardly take the same value twice elsewhere.

    Of an input of few values only that it never changes counts, and less: who is served may say that.
    """
    if any(one.atom_shares is None for one in clients):
        return np.zeros(len(clients))
    often = np.array([one.atom_shares[0] for one in clients if one.atom_shares is not None])
    count = np.array([one.n for one in clients])[:, None]
    ordered = np.sort(often, axis=0)
    others = np.where(often == ordered[-1], ordered[-3], ordered[-2])  # one other may be faulty, too
    is_filled = (often >= _OFTEN) & (others <= np.minimum(_RARELY, often / 4)) & (often * count >= _FEWEST_ALIKE)
    of_few = np.clip((_OF_FEW - others) / (_OF_FEW - _CONTINUOUS), 0.0, 1.0) * (often >= _ALL)
    return np.asarray(_TIMES * np.maximum(of_few, often * is_filled).sum(1))
