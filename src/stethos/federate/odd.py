"""Which updates of a round stand out, from their fingerprints alone: cheap, and generous rather than sure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.cohort import Comparison
from stethos.federate.fingerprint import Fingerprint

_DEVIATIONS = 3.5
_LEAST_SPREAD = 0.02


def odd_clients(prints: Sequence[Fingerprint], compared: Comparison) -> list[str]:
    """Clients with non-finite numbers, or whose length or direction lies far from the other clients'."""
    with np.errstate(divide="ignore", invalid="ignore"):
        lengths = np.log(compared.norm_ratio[:, -1])
    far = _far(lengths) | _far(compared.cos_centre[:, -1]) | _far(compared.sign_agreement[:, -1])
    return [one.client for one, is_far in zip(prints, far, strict=True) if is_far or not one.is_finite]


def _far(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Far from the median, by its median deviation; what cannot be told is not far, what is infinite is."""
    known = values[np.isfinite(values)]
    if len(known) < 3:
        return np.asarray(np.isinf(values), bool)
    middle = float(np.median(known))
    spread = max(1.4826 * float(np.median(np.abs(known - middle))), _LEAST_SPREAD)
    away = np.abs(np.where(np.isnan(values), middle, values) - middle)
    return np.asarray((away > _DEVIATIONS * spread) | (away == math.inf), bool)
