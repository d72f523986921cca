"""Faults of data, from sketches of them: each client's against those of all others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.column_values import Scales, scales_of
from stethos.diagnose.federated.common_values import TABLE, grain_margins, novel_margins, others_of
from stethos.diagnose.federated.data_sketch import Sketch, fewest_samples
from stethos.diagnose.federated.reference import references_of
from stethos.diagnose.federated.standing_out import around_others, margins, second_of_others

Array = npt.NDArray[np.float64]
FEWEST_SAMPLES = 15
_FEWEST_SCALED = 8  # samples are enough to see another scale
_FEWEST_OF_CLASS = 5
_MOST_COLUMNS = 0.55  # on another scale or far away: a shift of some is how a site may differ
_BY_CHANCE = 1e-3
_COMMON_TOKENS = 32
_TILTED, _SUPPORTED = 0.3, 0.6  # of what accuses
_ROOM = 0.25  # of a range, beyond it
_HARDLY_VARIES, _OF_PIXELS = 0.05, 0.5  # of what the median column varies; pixels have one unit, also those at the edge
_FAR_ALONE = 3.0  # times as much, where the share of the variance does not show it
_OWN_WORDS = 0.6
_RARE_WORDS = 0.05  # of what buckets of words vary by on average: one sample with a rare word is no noise


def data_margins(clients: Sequence[Sketch | None]) -> dict[str, Array]:
    """By kind of fault, how far each client stands out; clients without enough samples do not."""
    count = len(clients)
    fewest = fewest_samples(clients, FEWEST_SAMPLES)
    known = [one if one is not None and one.n >= fewest else None for one in clients]
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
    found["atoms"], found["imputed"] = novel_margins(alike)
    found["grain"] = grain_margins(alike)
    found["target-units"] = _target_units(alike)
    odd = np.max([found[name] for name in found], axis=0) if found else np.zeros(count)
    typical = [one if odd[place] < 1 else None for place, one in enumerate(alike)]
    if sum(one is not None for one in typical) >= 3:
        found["noise"] = _reconstruction(alike, typical)
        found["targets"] = _target_residual(alike, typical)
    return found


# Scale -----------------------------------------------------------------------------------------------


def _scales(clients: Sequence[Sketch | None]) -> tuple[Array, Array, Array]:
    """One input in other units; many inputs on another scale or place; inputs that never change."""
    found = np.full((3, len(clients)), np.nan)
    for known in scales_of(tuple(clients)):
        is_pixel = known.sketches[0].width > TABLE
        usual = known.usual_deviation
        least = (_OF_PIXELS if is_pixel else _HARDLY_VARIES) * np.median(usual, axis=1, keepdims=True)
        floor = np.maximum(least, 1e-9)
        scale = np.maximum(usual, floor)
        ratio = np.log10(np.maximum(known.deviation, floor / 10) / scale)
        widest = np.log10(np.maximum(second_of_others(known.deviation) / scale, 1.0))  # one other may be faulty, too
        moved = np.abs(known.middle - known.usual_middle) / (scale + 3 * known.differ)
        is_usual = usual > floor / 5  # what is always the same at all others may be another value elsewhere
        farthest = np.where(is_usual, ratio - widest, -np.inf).max(1), np.where(is_usual, moved, 0.0).max(1)
        largest = np.where(_is_same_range(known.sketches), 0.0, np.maximum(farthest[0], np.log10(1 + farthest[1])))
        is_shifted = ((np.abs(ratio) > 0.6) | (moved > 4)) & is_usual
        varies = is_usual & _must_vary(known)
        is_fixed = (known.deviation < 1e-6) & varies
        count = is_usual.sum(1)
        shares = largest, is_shifted.sum(1) / np.maximum(count, 1), is_fixed.sum(1) / np.maximum(varies.sum(1), 1)
        found[:, known.places] = np.where(count > 0, shares, np.nan)
    return (
        margins(found[0], 1.5, 4.0, 0.1), margins(found[1], _MOST_COLUMNS, 4.0, 0.05),
        margins(found[2], 0.25, 4.0, 0.05),
    )  # fmt: skip


def _is_same_range(clients: Sequence[Sketch]) -> npt.NDArray[np.bool_]:
    """Whether all inputs lie between the others' smallest and largest: pixels have one unit, tables one per column."""
    ranges = [one.range for one in clients if one.range is not None]
    if clients[0].width <= TABLE or len(ranges) < len(clients):
        return np.zeros(len(clients), bool)
    low, high = np.array(ranges).T
    lowest, highest = -second_of_others(-low), second_of_others(high)
    room = _ROOM * (highest - lowest)
    return np.asarray((low >= lowest - room) & (high <= highest + room))


def _must_vary(known: Scales) -> npt.NDArray[np.bool_]:
    """Inputs that so many samples hardly have all alike by chance: what is rare at the others may be missing here."""
    shares = [one.atom_shares[0] for one in known.sketches if one.atom_shares is not None]
    columns = known.deviation.shape[1]
    if len(shares) < len(known.sketches) or len({len(one) for one in shares}) > 1:
        return np.ones(known.deviation.shape, bool)
    common = around_others(np.array(shares))[0][:, :: -(-len(shares[0]) // columns)]
    if common.shape[1] != columns:
        return np.ones(known.deviation.shape, bool)
    return np.asarray(common ** np.array([one.n for one in known.sketches])[:, None] < _BY_CHANCE)


def _words(clients: Sequence[Sketch | None]) -> Array:
    """How much less of the others' common words a client has.

    Which words a client has says whom it serves: it must have fewer common words of its own, too, as with random ones.
    """
    fewer = np.full(len(clients), np.nan)
    for place, mine in enumerate(clients):
        others = [one.tokens for one in others_of(clients, place) if one.tokens]
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
    is_rough = np.array([one is not None and one.width > TABLE for one in clients]) & (tilted < _TILTED)
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
        varies = np.diag(reference)
        least = 1e-2 * np.median(varies) if mine.kind == "numbers" else _RARE_WORDS * varies.mean()
        is_used = varies > least
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
