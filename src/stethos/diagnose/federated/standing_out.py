"""How far a client stands out from the others in one number, against what they differ by among themselves."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
FEWEST = 4
_MANY = 256  # from so many clients on, leaving one out moves the median of the others by nothing that counts
_SIGMA = 1.4826


def deviations(values: Array, floor: float, errors: Array | float = 0.0) -> Array:
    """For each client, by how many robust standard deviations it lies above the median of the others."""
    found = np.full(len(values), np.nan)
    known = np.flatnonzero(np.isfinite(values))
    spread = np.broadcast_to(np.asarray(errors, float), values.shape)
    if len(known) < FEWEST:
        return found
    middle, scale, _ = _others(values[known])
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
    found = np.zeros(len(values))
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < FEWEST:
        return found
    error = np.nan_to_num(np.broadcast_to(np.asarray(errors, float), values.shape)[known])
    middle, scale, far = _others(values[known])
    above = values[known] - middle
    z = above / np.maximum(np.sqrt(scale**2 + error**2 + floor**2), 1e-12)
    distance = above / np.maximum(np.maximum(far, floor), 1e-12)
    found[known] = np.minimum(np.minimum(above / least, z / deviations), distance / gap)
    return found


@cache
def _without_each(count: int) -> npt.NDArray[np.intp]:
    """Of each place, all others."""
    places = np.arange(count)
    return np.array([np.delete(places, place) for place in places])


def _others(values: Array) -> tuple[Array, Array, Array]:
    """Of the others of each: their median, their robust standard deviation, and the distance of the second farthest."""
    count = len(values)
    if count < _MANY:
        others = values[_without_each(count)]
        middle = np.median(others, axis=1)
        apart = np.sort(np.abs(others - middle[:, None]), axis=1)
        return middle, _SIGMA * np.median(apart, axis=1) * (1 + 2 / (count - 1)), apart[:, -2]
    middle = np.full(count, np.median(values))
    apart = np.abs(values - middle)
    third, second = np.sort(apart)[-3:-1]
    scale = np.full(count, _SIGMA * np.median(apart) * (1 + 2 / (count - 1)))
    return middle, scale, np.where(apart >= second, third, second)
