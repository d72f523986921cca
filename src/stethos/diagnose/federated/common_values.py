"""Values that one client has and others do not, or that it lacks: marks, numbers for "missing", another sensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.column_values import Values, bounds_of, scales_of, values_of
from stethos.diagnose.federated.data_sketch import Sketch
from stethos.diagnose.federated.standing_out import around_others, margins, middle_of, second_of_others

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
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


def novel_margins(clients: Sequence[Sketch | None]) -> tuple[Array, Array]:
    """The share of samples with a value that hardly any sample of the others has: in few columns, and in many.

    A value inside of the others' range may come from other people or a brighter room, unless it is common in many
    columns. One outside of it is a mark or a number for "missing"; in one column only where its samples share a label.
    """
    shares, stamps = np.full((2, len(clients)), np.nan)
    is_wide = np.zeros(len(clients), bool)
    for values in values_of(tuple(clients)):
        can_be_stamped = _can_be_stamped(values.sketches)
        shares[values.places] = np.where(_are_of_others_classes(values.sketches), 0.0, np.nan)
        stamps[values.places] = np.where(can_be_stamped, 0.0, np.nan)
        far, marked = _are_far(values), _are_marked(values)
        for rank in range(2):
            for part, elsewhere in values.elsewhere(rank):
                second, usual = elsewhere[:, -2], middle_of(elsewhere.transpose(1, 0, 2))
                for at, place in enumerate(values.places[part].tolist(), part.start):
                    one = at, rank, far[at, rank], marked[at, rank]
                    row = at - part.start
                    if np.isfinite(shares[place]):
                        novel = _novel(values, *one, usual[row], second[row] if len(far) > 4 else elsewhere[row, -1])
                        shares[place] = max(shares[place], novel[0])
                        is_wide[place] |= novel[1]
                    if can_be_stamped[at]:
                        stamps[place] = max(stamps[place], _stamped(values, at, rank, usual[row], second[row]))
    found, stamped = margins(shares, _NOVEL, 4.0, 0.02), margins(stamps, _NOVEL, 4.0, 0.02)
    return np.maximum(np.where(is_wide, 0.0, found), stamped), np.where(is_wide, found, 0.0)


def _novel(
    values: Values, at: int, rank: int, is_far: Mask, is_marked: Mask, usual: Array, often: Array
) -> tuple[float, bool]:  # fmt: skip
    """Of one client, by one of its commonest values: the share, and whether it is in many columns."""
    mine, own = values.sketches[at], values.shares[at, rank]
    is_novel = (own * mine.n >= 5) & ((usual < 0.04) | (is_far & (usual < own / 4))) & (often < own / 3)
    is_novel &= is_far | (own >= _NOVEL_INSIDE)
    if mine.kind == "tokens":  # shorter texts are filled up as others' are
        is_novel &= ~np.isin(values.atoms[at, rank], np.unique(np.delete(values.atoms[:, 0, -1], at)))
    if is_novel.any():
        is_novel &= ~_is_renamed(mine, np.delete(values.atoms, at, 0), np.delete(values.shares, at, 0), own)
    is_novel |= is_marked
    if is_novel.sum() < _FEWEST_NOVEL or is_novel.mean() <= _MANY:
        # that one input is always the same says whom a client has
        is_novel &= (is_far | is_marked) & (own < 0.9)
        if is_novel.sum() == 1 and mine.atom_labels is not None:
            is_novel &= mine.atom_labels[rank] >= _SAME_LABEL
    return (float(own[is_novel].max()), bool(is_novel.mean() > _MANY)) if is_novel.any() else (0.0, False)


def _are_of_others_classes(clients: Sequence[Sketch]) -> Mask:
    """Whether three of the others have most of a client's classes: a class that few have brings values of its own."""
    if clients[0].classes is None:
        return np.ones(len(clients), bool)
    labels = sorted({label for one in clients for label in one.classes or ()})
    counts = np.zeros((len(clients), len(labels)))
    for row, one in enumerate(clients):
        counts[row, np.searchsorted(labels, one.classes or ())] = one.counts
    is_held = counts >= 2
    is_told = is_held.sum(0) - is_held >= _FEWEST_OTHERS
    return np.asarray(np.where(is_told, counts, 0.0).sum(1) > _MOST_TOLD * np.array([one.n for one in clients]))


def _is_renamed(mine: Sketch, atoms: Array, weights: Array, own: Array) -> Mask:
    """Where a client's common value stands in the place of one that most others have: another gain or offset.

    What is missing and filled in stands beside the values that are left.
    """
    assert mine.atoms is not None
    usual = middle_of(weights[:, 0])
    agreed = middle_of(atoms[:, 0])
    is_agreed = (atoms[:, 0] == agreed).mean(0) >= _AGREED
    is_left = ((mine.atoms == agreed) & (np.asarray(mine.atom_shares) > 0)).any(0)
    return np.asarray(is_agreed & ~is_left & (own < usual + _AS_OFTEN))


def _can_be_stamped(clients: Sequence[Sketch]) -> Mask:
    """Of whose samples a label can go with a value: not all have one."""
    return np.array([
        one.atom_labels is not None and float(one.counts.max(initial=0.0)) <= _MOST_OF_ONE * one.n for one in clients
    ])  # fmt: skip


def _stamped(values: Values, at: int, rank: int, usual: Array, often: Array) -> float:
    """The share of samples with a mark: values in several columns that come equally often, with one label.

    Hardly any sample of the others has them there.
    """
    mine, own = values.sketches[at], values.shares[at, rank]
    assert mine.atom_labels is not None
    is_novel = (often < own / 3) & (usual < own / 5)
    is_mark = is_novel & (own * mine.n >= 5) & (own < 0.9) & (mine.atom_labels[rank] >= _SAME_LABEL)
    best = 0.0
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
    for known in values_of(tuple(clients)):
        if known.sketches[0].width > TABLE:
            continue
        values, shares = known.atoms[:, 0], known.shares[:, 0]
        most_usual, least_of_others = around_others(shares)[0], -second_of_others(-shares)
        for at, (place, mine) in enumerate(zip(known.places.tolist(), known.sketches, strict=True)):
            usual, least = most_usual[at], least_of_others[at]
            is_common = (usual >= _COMMON) & (usual <= _NEARLY_ALL) & (least * mine.n >= 4)
            found[place] = 0.0
            if is_common.sum() < _FEWEST_NOVEL:
                continue
            error = np.sqrt(np.maximum(usual * (1 - usual), 0.02) / mine.n)
            is_rarer = (shares[at] < least / 2) & (shares[at] < least - 3 * error) & is_common
            if not is_rarer.any():
                continue
            others = np.delete(values, at, 0)
            is_same = ((known.atoms[at, 0] == others) | (known.atoms[at, 1] == others)).mean(0) >= 0.5
            is_agreed = is_common & (np.array([np.unique(one, return_counts=True)[1].max() for one in others.T])
                                     >= 0.6 * len(others))  # fmt: skip
            is_other = not is_agreed.any() or float(is_same[is_agreed].mean()) < _HARDLY_ANY
            found[place] = float((is_rarer & ~is_same)[is_common].mean()) if is_other else 0.0
    return margins(found, 0.2, 4.0, 0.05)


def _are_marked(values: Values) -> Mask:
    """Which common values lie outside of all that others have and come with one label, in two columns.

    Tables only: bright pictures have more white than others, at places that go with a label.
    """
    found = np.zeros(values.atoms.shape, bool)
    sketches, width = values.sketches, values.atoms.shape[2]
    bounds = bounds_of(sketches)
    if sketches[0].width > TABLE or bounds is None or any(one.atom_labels is None for one in sketches):
        return found
    again = -(-width // bounds[0].shape[1])  # of wide inputs every so-many-th column is known
    low, high = (np.repeat(one, again, axis=1)[:, :width] for one in bounds)
    room = 0.1 * (high - low) + 1e-9
    is_out = (values.atoms > (high + room)[:, None]) | (values.atoms < (low - room)[:, None])
    labels = np.array([one.atom_labels for one in sketches])
    counts = np.array([one.n for one in sketches])[:, None, None]
    is_out &= (values.shares * counts >= 5) & (labels >= _SAME_LABEL)
    return np.asarray(is_out & (is_out.sum(2, keepdims=True) >= 2))


def _are_far(values: Values) -> Mask:
    """Which common values lie far from all that others have; one other may have them, too."""
    found = np.zeros(values.atoms.shape, bool)
    width = values.atoms.shape[2]
    for known in scales_of(values.sketches):
        again = -(-width // known.middle.shape[1])  # of wide inputs every so-many-th column is known
        usual, widest = (
            np.repeat(one, again, axis=1)[:, None, :width]
            for one in (known.usual_middle, second_of_others(known.deviation))
        )
        found[known.places] = np.abs(values.atoms[known.places] - usual) > _FAR_DEVIATIONS * widest + 1e-9
    return found
