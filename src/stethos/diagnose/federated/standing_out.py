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
    for place in known if len(known) >= FEWEST else ():
        others = values[known[known != place]]
        middle = float(np.median(others))
        scale = _SIGMA * float(np.median(np.abs(others - middle))) * (1 + 2 / len(others))
        error = float(np.nan_to_num(spread[place]))
        found[place] = (float(values[place]) - middle) / max(np.sqrt(scale**2 + error**2 + floor**2), 1e-12)
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
    spread = np.broadcast_to(np.asarray(errors, float), values.shape)
    for place in known:
        others = values[known[known != place]]
        middle = float(np.median(others))
        apart = np.sort(np.abs(others - middle))
        scale = _SIGMA * float(np.median(apart)) * (1 + 2 / len(others))
        error = float(np.nan_to_num(spread[place]))
        above = float(values[place]) - middle
        z = above / max(np.sqrt(scale**2 + error**2 + floor**2), 1e-12)
        distance = above / max(float(apart[-2]), floor, 1e-12)
        found[place] = min(above / least, z / deviations, distance / gap)
    return found
