"""Faults of data, from sketches of them: each client's against those of all others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.data_sketch import Sketch
from stethos.diagnose.federated.reference import references_of
from stethos.diagnose.federated.standing_out import margins, middle_of

Array = npt.NDArray[np.float64]
FEWEST_SAMPLES = 15
_FEWEST_SCALED = 8  # samples are enough to see another scale
_FEWEST_OF_CLASS = 5
_MOST_COLUMNS = 0.55  # on another scale or far away: a shift of some is how a site may differ
_BY_CHANCE = 1e-3
_NOVEL = 0.12  # share of samples with a value that others do not have
_NOVEL_INSIDE, _FEWEST_NOVEL = 0.35, 3  # the same inside of the others' range: in at least so many columns
_AGREED, _AS_OFTEN = 0.6, 0.15  # of the others have the same commonest value; how much more often another comes
_SAME_LABEL = 0.9
_MOST_OF_ONE = 0.8  # of its samples have one label: then many values go with it
_FEWEST_OTHERS, _MOST_TOLD = 3, 0.5  # with a class; of its samples are of such classes
_FAR_DEVIATIONS = 6.0
_MANY = 0.25  # of the columns: then values are missing, not marked
_COMMON_TOKENS = 32
_COMMON, _NEARLY_ALL, _HARDLY_ANY = 0.12, 0.97, 0.15
_TILTED, _SUPPORTED = 0.3, 0.6  # of what accuses
_TABLE = 48  # columns at most
_ROOM = 0.25  # of a range, beyond it
_FAR_ALONE = 3.0  # times as much, where the share of the variance does not show it
_OWN_WORDS = 0.6


def data_margins(clients: Sequence[Sketch | None]) -> dict[str, Array]:
    """By kind of fault, how far each client stands out; clients without enough samples do not."""
    count = len(clients)
    known = [one if one is not None and one.n >= FEWEST_SAMPLES else None for one in clients]
    kinds = [one.kind for one in known if one is not None]
    if len(kinds) < 4:
        return {}
    usual = max(set(kinds), key=kinds.count)
    alike = [one if one is not None and one.kind == usual else None for one in known]
    found: dict[str, Array] = {}
    if usual == "numbers":
        few = [one if one is not None and one.kind == usual and one.n >= _FEWEST_SCALED else None for one in clients]
        found["units"], found["unnormalised"], found["constant"] = _scales(few)
    else:
        found["fewer-words"] = _words(alike)
    found["atoms"], found["imputed"] = _novel(alike)
    found["grain"] = _grain(alike)
    found["target-units"] = _target_units(alike)
    odd = np.max([found[name] for name in found], axis=0) if found else np.zeros(count)
    typical = [one if odd[place] < 1 else None for place, one in enumerate(alike)]
    if sum(one is not None for one in typical) >= 3:
        found["noise"] = _reconstruction(alike, typical)
        found["targets"] = _target_residual(alike, typical)
    return found


def _others(clients: Sequence[Sketch | None], place: int) -> list[Sketch]:
    mine = clients[place]
    return [one for number, one in enumerate(clients) if one is not None and number != place and
            (mine is None or one.can_join(mine))]  # fmt: skip


# Scale -----------------------------------------------------------------------------------------------


def _scales(clients: Sequence[Sketch | None]) -> tuple[Array, Array, Array]:
    """One input in other units; many inputs on another scale or place; inputs that never change."""
    largest, shifted, constant = (np.full(len(clients), np.nan) for _ in range(3))
    for place, mine in enumerate(clients):
        others = [one for one in _others(clients, place) if one.deviation is not None]
        if mine is None or mine.deviation is None or mine.middle is None or len(others) < 3:
            continue
        sizes = {one.deviation.shape for one in others if one.deviation is not None}
        if sizes != {mine.deviation.shape}:
            continue
        usual = middle_of(np.array([one.deviation for one in others if one.deviation is not None]))
        middle = middle_of(np.array([one.middle for one in others if one.middle is not None]))
        spread = middle_of(np.array([np.abs(one.middle - middle) for one in others if one.middle is not None]))
        floor = max(0.05 * float(np.median(usual)), 1e-9)
        scale = np.maximum(usual, floor)
        ratio, widest = np.log10(np.maximum(mine.deviation, floor / 10) / scale), _second_widest(others, scale)
        moved = np.abs(mine.middle - middle) / (scale + 3 * spread)
        is_usual = usual > floor / 5  # what is always the same at all others may be another value elsewhere
        if not is_usual.any():
            continue
        ratio, moved, widest = ratio[is_usual], moved[is_usual], widest[is_usual]
        if not _is_same_range(mine, others):
            largest[place] = max(float((ratio - widest).max()), float(np.log10(1 + moved.max())))
        else:
            largest[place] = 0.0
        shifted[place] = float(((np.abs(ratio) > 0.6) | (moved > 4)).mean())
        varies = is_usual & _must_vary(mine, others)
        constant[place] = float((mine.deviation[varies] < 1e-6).mean()) if varies.any() else 0.0
    return (
        margins(largest, 1.5, 4.0, 0.1), margins(shifted, _MOST_COLUMNS, 4.0, 0.05),
        margins(constant, 0.25, 4.0, 0.05),
    )  # fmt: skip


def _is_same_range(mine: Sketch, others: Sequence[Sketch]) -> bool:
    """Whether all inputs lie between the others' smallest and largest: pixels have one unit, tables one per column."""
    known = [one.range for one in others if one.range is not None]
    if mine.width <= _TABLE or mine.range is None or len(known) < 3:
        return False
    low, high = sorted(low for low, _ in known)[1], sorted(high for _, high in known)[-2]  # one may be faulty, too
    room = _ROOM * (high - low)
    return mine.range[0] >= low - room and mine.range[1] <= high + room


def _second_widest(others: Sequence[Sketch], scale: Array) -> Array:
    """How many powers of ten wider than usual each input is elsewhere, too: one other may be faulty, too."""
    wide = np.sort([one.deviation for one in others if one.deviation is not None], axis=0)[-2]
    return np.asarray(np.log10(np.maximum(wide / scale, 1.0)))


def _must_vary(mine: Sketch, others: Sequence[Sketch]) -> npt.NDArray[np.bool_]:
    """Inputs that so many samples hardly have all alike by chance: what is rare at the others may be missing here."""
    assert mine.deviation is not None
    known = [one.atom_shares[0] for one in others if one.atom_shares is not None]
    if not known or len({len(one) for one in known}) != 1:
        return np.ones(len(mine.deviation), bool)
    common = middle_of(np.array(known))[:: -(-len(known[0]) // len(mine.deviation))]
    if len(common) != len(mine.deviation):
        return np.ones(len(mine.deviation), bool)
    return np.asarray(common**mine.n < _BY_CHANCE)


# Values and words that only one client has -----------------------------------------------------------


def _novel(clients: Sequence[Sketch | None]) -> tuple[Array, Array]:
    """The share of samples with a value that hardly any sample of the others has: in few columns, and in many.

    A value inside of the others' range may come from other people or a brighter room, unless it is common in many
    columns. One outside of it is a mark or a number for "missing"; in one column only where its samples share a label.
    """
    shares, is_wide = np.full(len(clients), np.nan), np.zeros(len(clients), bool)
    for place, mine in enumerate(clients):
        others = _others(clients, place)
        if mine is None or mine.atoms is None or mine.atom_shares is None or not _are_of_its_classes(mine, others):
            continue
        theirs = [one for one in others if one.atoms is not None and one.atoms.shape == mine.atoms.shape]
        if len(theirs) < 3:
            continue
        atoms = np.stack([one.atoms for one in theirs if one.atoms is not None])
        weights = np.stack([one.atom_shares for one in theirs if one.atom_shares is not None])
        best = 0.0
        for rank in range(2):
            same = np.where(atoms == mine.atoms[rank], weights, 0.0).max(1)  # client x column
            bound = np.where(same > 0, same, weights[:, 1])
            own, is_far = mine.atom_shares[rank], _is_far(mine, others, rank)
            ordered = np.sort(bound, axis=0)
            often = ordered[-2] if len(bound) > 3 else ordered[-1]
            usual = 0.5 * (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2])
            is_novel = (own * mine.n >= 5) & ((usual < 0.04) | (is_far & (usual < own / 4))) & (often < own / 3)
            is_novel &= is_far | (own >= _NOVEL_INSIDE)
            if mine.kind == "tokens":  # shorter texts are filled up as others' are
                is_novel &= ~np.isin(mine.atoms[rank], np.unique(atoms[:, 0, -1]))
            if is_novel.any():
                is_novel &= ~_is_renamed(mine, atoms, weights, own)
            is_novel |= _is_marked(mine, others, rank)
            if is_novel.sum() < _FEWEST_NOVEL or is_novel.mean() <= _MANY:
                # that one input is always the same says whom a client has
                is_novel &= (is_far | _is_marked(mine, others, rank)) & (own < 0.9)
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
    others = [one for one in _others(clients, place) if one.atoms is not None and one.atoms.shape == mine.atoms.shape]
    if len(others) < 3 or float(mine.counts.max(initial=0.0)) > _MOST_OF_ONE * mine.n:
        return np.nan
    atoms = np.stack([one.atoms for one in others if one.atoms is not None])
    weights = np.stack([one.atom_shares for one in others if one.atom_shares is not None])
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


def _grain(clients: Sequence[Sketch | None]) -> Array:
    """The share of columns in which the others have a common value and a client has none that is nearly as common.

    It counts where hardly any of the others' common values is one of the client's. A sensor with another gain has other
    values that are as common; noise and columns in another order do not. Tables only: in pictures, black and white are
    common, and a site may have darker ones.
    """
    found = np.full(len(clients), np.nan)
    for place, mine in enumerate(clients):
        if mine is None or mine.atoms is None or mine.atom_shares is None or mine.width > _TABLE:
            continue
        others = [
            one for one in _others(clients, place) if one.atoms is not None and one.atoms.shape == mine.atoms.shape
        ]
        if len(others) < 3:
            continue
        values = np.stack([one.atoms[0] for one in others if one.atoms is not None])
        shares = np.stack([one.atom_shares[0] for one in others if one.atom_shares is not None])
        usual, least = middle_of(shares), np.sort(shares, axis=0)[1]  # one other may be faulty, too
        is_common = (usual >= _COMMON) & (usual <= _NEARLY_ALL) & (least * mine.n >= 4)
        if is_common.sum() < _FEWEST_NOVEL:
            found[place] = 0.0
            continue
        error = np.sqrt(np.maximum(usual * (1 - usual), 0.02) / mine.n)
        is_rarer = (mine.atom_shares[0] < least / 2) & (mine.atom_shares[0] < least - 3 * error)
        is_same = ((mine.atoms[0] == values) | (mine.atoms[1] == values)).mean(0) >= 0.5
        is_agreed = is_common & (np.array([np.unique(one, return_counts=True)[1].max() for one in values.T])
                                 >= 0.6 * len(others))  # fmt: skip
        is_other = not is_agreed.any() or float(is_same[is_agreed].mean()) < _HARDLY_ANY
        found[place] = float((is_rarer & ~is_same)[is_common].mean()) if is_other else 0.0
    return margins(found, 0.2, 4.0, 0.05)


def _is_marked(mine: Sketch, others: Sequence[Sketch], rank: int) -> npt.NDArray[np.bool_]:
    """Which of a client's common values lie outside of all that others have and come with one label, in two columns.

    Tables only: bright pictures have more white than others, at places that go with a label.
    """
    assert mine.atoms is not None and mine.atom_shares is not None
    width = mine.atoms.shape[1]
    known = [one for one in others if one.low is not None and one.high is not None]
    if (
        mine.width > _TABLE
        or len(known) < 3
        or mine.atom_labels is None
        or len({one.low.shape for one in known if one.low is not None}) != 1
    ):
        return np.zeros(width, bool)
    low = np.sort([one.low for one in known if one.low is not None], axis=0)[1]  # one other may have them, too
    high = np.sort([one.high for one in known if one.high is not None], axis=0)[-2]
    again = -(-width // len(low))
    low, high = (np.repeat(one, again)[:width] for one in (low, high))
    room = 0.1 * (high - low) + 1e-9
    is_out = (mine.atoms[rank] > high + room) | (mine.atoms[rank] < low - room)
    is_out &= (mine.atom_shares[rank] * mine.n >= 5) & (mine.atom_labels[rank] >= _SAME_LABEL)
    return is_out if is_out.sum() >= 2 else np.zeros(width, bool)


def _is_far(mine: Sketch, others: Sequence[Sketch], rank: int) -> npt.NDArray[np.bool_]:
    """Which of a client's common values lie far from all that others have; one other may have them, too."""
    assert mine.atoms is not None
    width = mine.atoms.shape[1]
    known = [one for one in others if one.middle is not None and one.deviation is not None]
    if len(known) < 3 or len({one.middle.shape for one in known if one.middle is not None}) != 1:
        return np.zeros(width, bool)
    middle = middle_of(np.array([one.middle for one in known if one.middle is not None]))
    deviation = np.sort([one.deviation for one in known if one.deviation is not None], axis=0)[-2]
    again = -(-width // len(middle))  # of wide inputs every so-many-th column is known
    middle, deviation = (np.repeat(one, again)[:width] for one in (middle, deviation))
    return np.asarray(np.abs(mine.atoms[rank] - middle) > _FAR_DEVIATIONS * deviation + 1e-9)


def _words(clients: Sequence[Sketch | None]) -> Array:
    """How much less of the others' common words a client has.

    Which words a client has says whom it serves: it must have fewer common words of its own, too, as with random ones.
    """
    fewer = np.full(len(clients), np.nan)
    for place, mine in enumerate(clients):
        others = [one.tokens for one in _others(clients, place) if one.tokens]
        if mine is None or not mine.tokens or len(others) < 3:
            continue
        total: dict[int, list[float]] = {}
        for tokens in others:
            for token, share in tokens.items():
                total.setdefault(token, []).append(share)
        common = sorted(total, key=lambda token: -sum(total[token]))[:_COMMON_TOKENS]
        usual = sum(sum(total[token]) for token in common) / len(others)
        shared = -np.log10(max(sum(mine.tokens.get(token, 0.0) for token in common), 1e-3) / max(usual, 1e-3))
        own = -np.log10(_commonest(mine.tokens) / float(np.median([_commonest(tokens) for tokens in others])))
        fewer[place] = min(shared, own / _OWN_WORDS)
    return margins(fewer, 0.2, 4.0, 0.03)


def _commonest(tokens: dict[int, float]) -> float:
    """How many of its own commonest words a sample has, on average."""
    return max(sum(sorted(tokens.values(), reverse=True)[:_COMMON_TOKENS]), 1e-3)


def _target_units(clients: Sequence[Sketch | None]) -> Array:
    """The spread of what a regression is to answer, on a logarithmic scale; of several targets the median one's."""
    spread = np.full(len(clients), np.nan)
    for place, mine in enumerate(clients):
        if mine is not None and mine.targets:
            variance = np.diag(mine.scatter)[-mine.targets :] / mine.n
            spread[place] = float(np.median(np.log10(np.maximum(np.sqrt(variance), 1e-9))))
    middle = np.nanmedian(spread) if np.isfinite(spread).any() else 0.0
    return margins(np.abs(spread - middle), 1.0, 4.0, 0.05)


# Relations between inputs ----------------------------------------------------------------------------


def _reconstruction(clients: Sequence[Sketch | None], typical: Sequence[Sketch | None]) -> Array:
    """How much worse a feature follows from the others, within classes, than it does at the other clients.

    Both as a distance and as a share of its own variance, as noise makes it: inputs on another scale, or that vary more
    or less, are how a site may differ. Noise and columns in another order raise the variance most along directions in
    which the others' data hardly vary; rougher textures of pictures raise it along all, so pictures must show that.
    """
    worse, unexplained, tilt, errors = residuals_of(clients, typical)
    apart, by_share = margins(worse, 0.15, 3.5, 0.02, errors), margins(unexplained, 0.04, 1.75, 0.02, errors, gap=1.0)
    tilted = margins(tilt, 0.25, 3.5, 0.03, errors)
    is_rough = np.array([one is not None and one.width > _TABLE for one in clients]) & (tilted < _TILTED)
    found = np.where(is_rough, 0.0, np.maximum(np.minimum(apart, by_share), apart / _FAR_ALONE))
    return np.maximum(found, np.minimum(tilted, apart / _SUPPORTED))


def residuals_of(
    clients: Sequence[Sketch | None], typical: Sequence[Sketch | None]
) -> tuple[Array, Array, Array, Array]:
    """Residuals of features, as distances and shares of their variance; the tilt towards what hardly varies; errors."""
    return _residuals_of(tuple(clients), tuple(typical))


@lru_cache(maxsize=2)  # rules and weighing ask the same
def _residuals_of(
    clients: tuple[Sketch | None, ...], typical: tuple[Sketch | None, ...]
) -> tuple[Array, Array, Array, Array]:
    worse, unexplained, tilt = np.full((3, len(clients)), np.nan)
    errors = np.zeros(len(clients))
    for place, (mine, others) in enumerate(zip(clients, references_of(clients, typical), strict=True)):
        if mine is None or others is None:
            continue
        reference, precision = others.covariance[: mine.inputs, : mine.inputs], others.precision(mine.inputs)
        own = mine.scatter[: mine.inputs, : mine.inputs] / max(mine.n - len(mine.counts), 1)
        residual = ((precision @ own) * precision).sum(1) / np.diag(precision)
        is_used = np.diag(reference) > 1e-2 * np.median(np.diag(reference))
        ratio = 0.5 * np.log10(np.maximum(residual[is_used], 1e-4))
        spread = 0.5 * np.log10(np.maximum(np.diag(own)[is_used] / np.diag(reference)[is_used], 1e-4))
        worse[place] = float(np.mean(np.clip(ratio, -2, 2)))
        unexplained[place] = float(np.mean(np.clip(ratio - spread, -2, 2)))
        sizes, ways = np.linalg.eigh(reference[np.ix_(is_used, is_used)])
        along = ((own[np.ix_(is_used, is_used)] @ ways) * ways).sum(0) / sizes
        if (half := len(sizes) // 2) >= 1:
            small, large = np.median(along[:half]), np.median(along[half:])
            tilt[place] = float(0.5 * np.log10(max(small, 1e-4) / max(large, 1e-4)))
        errors[place] = 0.5 / np.sqrt(mine.n)
    return worse, unexplained, tilt, errors


def _target_residual(clients: Sequence[Sketch | None], typical: Sequence[Sketch | None]) -> Array:
    """How much worse a regression's answer follows from the inputs, by the others' relation.

    Both as a distance and as a share of its own variance: where targets merely vary more the first grows, where they
    vary less the second. Differences of level are left out: they are what a curved relation makes of shifted inputs.
    """
    worse, unexplained = np.full(len(clients), np.nan), np.full(len(clients), np.nan)
    errors = np.zeros(len(clients))
    for place, (mine, whole) in enumerate(zip(clients, references_of(clients, typical), strict=True)):
        if mine is None or not mine.targets or whole is None:
            continue
        inputs = mine.features - mine.targets
        reference = whole.covariance
        slope = np.linalg.solve(reference[:inputs, :inputs], reference[:inputs, inputs:])
        moment = mine.scatter / mine.n
        goal = moment[inputs:, inputs:]
        own = goal - 2 * slope.T @ moment[:inputs, inputs:] + slope.T @ moment[:inputs, :inputs] @ slope
        usual = reference[inputs:, inputs:] - slope.T @ reference[:inputs, inputs:]
        worse[place] = float(np.log10(max(np.trace(own), 1e-12) / max(np.trace(usual), 1e-12)) / 2)
        unexplained[place] = min(float(np.trace(own) / max(np.trace(goal), 1e-12)), 2.0)
        errors[place] = 0.5 / np.sqrt(mine.n)
    return np.minimum(margins(worse, 0.25, 4.0, 0.03, errors), margins(unexplained, 0.35, 4.0, 0.03, errors))
