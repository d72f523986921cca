"""Values that one client has and others do not, or that it lacks: marks, numbers for "missing", another sensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.data_sketch import Sketch
from stethos.diagnose.federated.standing_out import margins, middle_of

Array = npt.NDArray[np.float64]
_NOVEL = 0.12  # share of samples with a value that others do not have
_NOVEL_INSIDE, _FEWEST_NOVEL = 0.35, 3  # the same inside of the others' range: in at least so many columns
_AGREED, _AS_OFTEN = 0.6, 0.15  # of the others have the same commonest value; how much more often another comes
_SAME_LABEL = 0.9
_MOST_OF_ONE = 0.8  # of its samples have one label: then many values go with it
_FEWEST_OTHERS, _MOST_TOLD = 3, 0.5  # with a class; of its samples are of such classes
_FAR_DEVIATIONS = 6.0
_MANY = 0.25  # of the columns: then values are missing, not marked
_COMMON, _NEARLY_ALL, _HARDLY_ANY = 0.12, 0.97, 0.15
TABLE = 48  # columns at most


def others_of(clients: Sequence[Sketch | None], place: int) -> list[Sketch]:
    """Those of the others whose samples look like a client's."""
    mine = clients[place]
    return [one for number, one in enumerate(clients) if one is not None and number != place and
            (mine is None or one.can_join(mine))]  # fmt: skip


@lru_cache(maxsize=4)  # asked by several rules, for each client
def _common_values(clients: tuple[Sketch | None, ...], like: Sketch) -> tuple[npt.NDArray[np.intp], Array, Array]:
    """Places of clients whose samples look like these, their commonest values and how common these are."""
    places = [
        place for place, one in enumerate(clients)
        if one is not None and one.can_join(like) and one.atoms is not None and like.atoms is not None
        and one.atoms.shape == like.atoms.shape
    ]  # fmt: skip
    found = [one for place in places if (one := clients[place]) is not None]
    return (
        np.array(places, int),
        np.stack([one.atoms for one in found if one.atoms is not None]),
        np.stack([one.atom_shares for one in found if one.atom_shares is not None]),
    )


def _common_atothers_of(clients: Sequence[Sketch | None], place: int) -> tuple[Array, Array]:
    """The others' commonest values and how common these are, client x rank x column."""
    mine = clients[place]
    assert mine is not None
    first = next(one for one in clients if one is not None and one.can_join(mine) and one.atoms is not None
                 and mine.atoms is not None and one.atoms.shape == mine.atoms.shape)  # fmt: skip
    places, atoms, shares = _common_values(tuple(clients), first)
    return atoms[places != place], shares[places != place]


def novel_margins(clients: Sequence[Sketch | None]) -> tuple[Array, Array]:
    """The share of samples with a value that hardly any sample of the others has: in few columns, and in many.

    A value inside of the others' range may come from other people or a brighter room, unless it is common in many
    columns. One outside of it is a mark or a number for "missing"; in one column only where its samples share a label.
    """
    shares, is_wide = np.full(len(clients), np.nan), np.zeros(len(clients), bool)
    for place, mine in enumerate(clients):
        others = others_of(clients, place)
        if mine is None or mine.atoms is None or mine.atom_shares is None or not _are_of_its_classes(mine, others):
            continue
        atoms, weights = _common_atothers_of(clients, place)
        if len(atoms) < 3:
            continue
        far, marked = _is_far(mine, others), _is_marked(mine, others)
        best = 0.0
        for rank in range(2):
            same = np.where(atoms == mine.atoms[rank], weights, 0.0).max(1)  # client x column
            bound = np.where(same > 0, same, weights[:, 1])
            own, is_far, is_marked = mine.atom_shares[rank], far[rank], marked[rank]
            ordered = np.sort(bound, axis=0)
            often = ordered[-2] if len(bound) > 3 else ordered[-1]
            usual = 0.5 * (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2])
            is_novel = (own * mine.n >= 5) & ((usual < 0.04) | (is_far & (usual < own / 4))) & (often < own / 3)
            is_novel &= is_far | (own >= _NOVEL_INSIDE)
            if mine.kind == "tokens":  # shorter texts are filled up as others' are
                is_novel &= ~np.isin(mine.atoms[rank], np.unique(atoms[:, 0, -1]))
            if is_novel.any():
                is_novel &= ~_is_renamed(mine, atoms, weights, own)
            is_novel |= is_marked
            if is_novel.sum() < _FEWEST_NOVEL or is_novel.mean() <= _MANY:
                # that one input is always the same says whom a client has
                is_novel &= (is_far | is_marked) & (own < 0.9)
                if is_novel.sum() == 1 and mine.atom_labels is not None:
                    is_novel &= mine.atom_labels[rank] >= _SAME_LABEL
            if is_novel.any():
                best = max(best, float(own[is_novel].max()))
                is_wide[place] |= is_novel.mean() > _MANY
        shares[place] = best
    found = margins(shares, _NOVEL, 4.0, 0.02)
    stamped = margins(np.array([_stamped(clients, place) for place in range(len(clients))]), _NOVEL, 4.0, 0.02)
    return np.maximum(np.where(is_wide, 0.0, found), stamped), np.where(is_wide, found, 0.0)


def _are_of_its_classes(mine: Sketch, others: Sequence[Sketch]) -> bool:
    """Whether three of the others have most of a client's classes: a class that few have brings values of its own."""
    if mine.classes is None:
        return len(others) >= _FEWEST_OTHERS
    held = [
        sum(label in (one.classes or ()) and one.counts[(one.classes or ()).index(label)] >= 2 for one in others)
        for label in mine.classes
    ]
    return float(mine.counts[np.array(held) >= _FEWEST_OTHERS].sum()) > _MOST_TOLD * mine.n


def _is_renamed(mine: Sketch, atoms: Array, weights: Array, own: Array) -> npt.NDArray[np.bool_]:
    """Where a client's common value stands in the place of one that most others have: another gain or offset.

    What is missing and filled in stands beside the values that are left.
    """
    assert mine.atoms is not None
    usual = middle_of(weights[:, 0])
    agreed = middle_of(atoms[:, 0])
    is_agreed = (atoms[:, 0] == agreed).mean(0) >= _AGREED
    is_left = ((mine.atoms == agreed) & (np.asarray(mine.atom_shares) > 0)).any(0)
    return np.asarray(is_agreed & ~is_left & (own < usual + _AS_OFTEN))


def _stamped(clients: Sequence[Sketch | None], place: int) -> float:
    """The share of samples with a mark: values in several columns that come equally often, with one label.

    Hardly any sample of the others has them there. NaN where it cannot be told.
    """
    mine = clients[place]
    if mine is None or mine.atoms is None or mine.atom_shares is None or mine.atom_labels is None:
        return np.nan
    atoms, weights = _common_atothers_of(clients, place)
    if len(atoms) < 3 or float(mine.counts.max(initial=0.0)) > _MOST_OF_ONE * mine.n:
        return np.nan
    best = 0.0
    for rank in range(2):
        own = mine.atom_shares[rank]
        same = np.where(atoms == mine.atoms[rank], weights, 0.0).max(1)
        at_most = np.where(same > 0, same, weights[:, 1])
        is_novel = (np.sort(at_most, axis=0)[-2] < own / 3) & (middle_of(at_most) < own / 5)
        is_mark = is_novel & (own * mine.n >= 5) & (own < 0.9) & (mine.atom_labels[rank] >= _SAME_LABEL)
        for share in np.unique(own[is_mark]):
            alike = is_mark & (np.abs(own - share) <= 0.02)
            if alike.sum() >= 2 and (alike.mean() <= _MANY or alike.sum() <= 3):
                best = max(best, float(share))
    return best


def grain_margins(clients: Sequence[Sketch | None]) -> Array:
    """The share of columns in which the others have a common value and a client has none that is nearly as common.

    It counts where hardly any of the others' common values is one of the client's. A sensor with another gain has other
    values that are as common; noise and columns in another order do not. Tables only: in pictures, black and white are
    common, and a site may have darker ones.
    """
    found = np.full(len(clients), np.nan)
    for place, mine in enumerate(clients):
        if mine is None or mine.atoms is None or mine.atom_shares is None or mine.width > TABLE:
            continue
        values, shares = (one[:, 0] for one in _common_atothers_of(clients, place))
        if len(values) < 3:
            continue
        usual, least = middle_of(shares), np.sort(shares, axis=0)[1]  # one other may be faulty, too
        is_common = (usual >= _COMMON) & (usual <= _NEARLY_ALL) & (least * mine.n >= 4)
        if is_common.sum() < _FEWEST_NOVEL:
            found[place] = 0.0
            continue
        error = np.sqrt(np.maximum(usual * (1 - usual), 0.02) / mine.n)
        is_rarer = (mine.atom_shares[0] < least / 2) & (mine.atom_shares[0] < least - 3 * error)
        is_same = ((mine.atoms[0] == values) | (mine.atoms[1] == values)).mean(0) >= 0.5
        is_agreed = is_common & (np.array([np.unique(one, return_counts=True)[1].max() for one in values.T])
                                 >= 0.6 * len(values))  # fmt: skip
        is_other = not is_agreed.any() or float(is_same[is_agreed].mean()) < _HARDLY_ANY
        found[place] = float((is_rarer & ~is_same)[is_common].mean()) if is_other else 0.0
    return margins(found, 0.2, 4.0, 0.05)


def _is_marked(mine: Sketch, others: Sequence[Sketch]) -> npt.NDArray[np.bool_]:
    """Which of a client's common values lie outside of all that others have and come with one label, in two columns.

    Tables only: bright pictures have more white than others, at places that go with a label.
    """
    assert mine.atoms is not None and mine.atom_shares is not None
    width = mine.atoms.shape[1]
    known = [one for one in others if one.low is not None and one.high is not None]
    if (
        mine.width > TABLE
        or len(known) < 3
        or mine.atom_labels is None
        or len({one.low.shape for one in known if one.low is not None}) != 1
    ):
        return np.zeros((2, width), bool)
    low = np.sort([one.low for one in known if one.low is not None], axis=0)[1]  # one other may have them, too
    high = np.sort([one.high for one in known if one.high is not None], axis=0)[-2]
    again = -(-width // len(low))
    low, high = (np.repeat(one, again)[:width] for one in (low, high))
    room = 0.1 * (high - low) + 1e-9
    is_out = (mine.atoms > high + room) | (mine.atoms < low - room)
    is_out &= (mine.atom_shares * mine.n >= 5) & (mine.atom_labels >= _SAME_LABEL)
    return np.asarray(is_out & (is_out.sum(1, keepdims=True) >= 2))


def _is_far(mine: Sketch, others: Sequence[Sketch]) -> npt.NDArray[np.bool_]:
    """Which of a client's common values lie far from all that others have; one other may have them, too."""
    assert mine.atoms is not None
    width = mine.atoms.shape[1]
    known = [one for one in others if one.middle is not None and one.deviation is not None]
    if len(known) < 3 or len({one.middle.shape for one in known if one.middle is not None}) != 1:
        return np.zeros((2, width), bool)
    middle = middle_of(np.array([one.middle for one in known if one.middle is not None]))
    deviation = np.sort([one.deviation for one in known if one.deviation is not None], axis=0)[-2]
    again = -(-width // len(middle))  # of wide inputs every so-many-th column is known
    middle, deviation = (np.repeat(one, again)[:width] for one in (middle, deviation))
    return np.asarray(np.abs(mine.atoms - middle) > _FAR_DEVIATIONS * deviation + 1e-9)
