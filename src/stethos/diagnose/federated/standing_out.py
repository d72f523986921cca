"""How far a client stands out from the others in one number, against what they differ by among themselves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
FEWEST = 4
_SIGMA = 1.4826


def deviations(values: Array, floor: float, errors: Array | float = 0.0) -> Array:
    """For each client, by how many robust standard deviations it lies above the median of the others."""
    found = np.full(len(values), np.nan)
    known = np.flatnonzero(np.isfinite(values))
    spread = np.broadcast_to(np.asarray(errors, float), values.shape)
    if len(known) < FEWEST:
        return found
    middle, scale, _ = (one[0] for one in _others(values[known][None]))
    error = np.nan_to_num(spread[known])
    found[known] = (values[known] - middle) / np.maximum(np.sqrt(scale**2 + error**2 + floor**2), 1e-12)
    return found


def margins(
    values: Array, least: float, deviations: float = 3.5, floor: float = 0.0, errors: Array | float = 0.0,
    gap: float = 2.0,
) -> Array:  # fmt: skip
    """For each client, how many times over it passes three tests at once; 1 and more means that it stands out upwards.

    It must lie `least` above the median of the others, `deviations` robust standard deviations above it (those of the
    others, the error of its own number and a floor together), and `gap` times as far as the second farthest of the
    others: the second, so that two faulty clients do not hide each other. NaN is not known, and does not stand out.
    """
    error = np.nan_to_num(np.broadcast_to(np.asarray(errors, float), values.shape))
    found = margins_of_rows(values[None], np.full(1, least), deviations, np.full(1, floor), error[None], gap)
    return np.asarray(found[0])


def margins_of_rows(
    values: Array, least: Array, deviations: float, floor: Array, errors: Array | float = 0.0, gap: float = 2.0
) -> Array:
    """The same of several numbers at once, a row each; `least` and `floor` are those of the rows."""
    found = np.zeros(values.shape)
    is_known = np.isfinite(values)
    errors = np.broadcast_to(np.asarray(errors, float), values.shape)
    alike: dict[bytes, list[int]] = {}
    for row, mask in enumerate(np.packbits(is_known, axis=1)):
        alike.setdefault(mask.tobytes(), []).append(row)
    for rows in alike.values():
        known = np.flatnonzero(is_known[rows[0]])
        if len(known) < FEWEST:
            continue
        at = np.ix_(np.array(rows), known)
        mine, lowest = values[at], floor[rows, None]
        middle, scale, far = _others(mine)
        above = mine - middle
        z = above / np.maximum(np.sqrt(scale**2 + errors[at] ** 2 + lowest**2), 1e-12)
        distance = above / np.maximum(np.maximum(far, lowest), 1e-12)
        found[at] = np.minimum(np.minimum(above / least[rows, None], z / deviations), distance / gap)
    return found


def middle_of(values: Array) -> Array:
    """The median of the rows; of few rows in a fraction of the time that np.median takes. NaN counts as largest."""
    ordered = np.sort(values, axis=0)
    return np.asarray(0.5 * (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]))


def _others(values: Array) -> tuple[Array, Array, Array]:
    """Of the others of each: their median, their robust standard deviation, and the distance of the second farthest.

    Leaving one out of a row of numbers gives at most three medians, by which side of the middle it is taken from. So
    each row is sorted once, and its distances from these three.
    """
    rows, count = np.arange(len(values))[:, None], values.shape[1]
    middle, three, case = _median_of_others(values)
    apart = np.abs(values - three[:, :, None])
    own = np.arange(count)
    spread = _spread_of_others(apart)[case, rows, own]
    most = np.partition(apart, (count - 3, count - 2), axis=-1)
    apart = apart[case, rows, own]
    third, second = most[case, rows, count - 3], most[case, rows, count - 2]
    return middle, _SIGMA * spread * (1 + 2 / (count - 1)), np.where(apart >= second, third, second)


def around_others(values: Array) -> tuple[Array, Array]:
    """For each row the median of the other rows, column by column, and the median of how far those lie from it."""
    turned = np.ascontiguousarray(values.T)
    rows, own = np.arange(len(turned))[:, None], np.arange(len(values))
    middle, three, case = _median_of_others(turned)
    return middle.T, _spread_of_others(np.abs(turned - three[:, :, None]))[case, rows, own].T


def second_of_others(values: Array) -> Array:
    """For each row the second largest of the other rows, column by column: the largest may be of a faulty client."""
    ordered = np.partition(values, (len(values) - 3, len(values) - 2), axis=0)
    return np.asarray(np.where(values >= ordered[-2], ordered[-3], ordered[-2]))


def _spread_of_others(apart: Array) -> Array:
    """Medians of distances from the three medians that there are, without that of each."""
    return _median_of_others(apart.reshape(-1, apart.shape[-1]))[0].reshape(apart.shape)


def _median_of_others(values: Array) -> tuple[Array, Array, npt.NDArray[np.intp]]:
    """For each number of a row the median of the row's others; the three that there are; and which of them each has."""
    rows, count = np.arange(len(values))[:, None], values.shape[1]
    places = values.argsort(axis=1)
    rank = np.empty_like(places)
    rank[rows, places] = np.arange(count)
    low, high = (count - 2) // 2, (count - 1) // 2  # of what is left without one
    case = (rank > low).astype(np.intp) + (rank > high)
    at = np.array([[low + 1, high + 1], [low, high + 1], [low, high]])
    three = values[rows, places[:, at.reshape(-1)]].reshape(-1, 3, 2).sum(2).T / 2
    return three[case, rows], three, case
