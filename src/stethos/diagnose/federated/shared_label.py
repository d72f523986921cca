"""How far clients have labels in common: what a client's data can be compared with."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.cohort import Cohort

Array = npt.NDArray[np.float64]
_HARDLY = 0.1


def shared_labels(cohort: Cohort) -> Array:
    """For each client, of all samples with its labels, the share that other clients hold.

    A mean over the client's own samples: 0 where it alone holds each of its labels, 0.9 where ten clients hold
    the same. NaN for clients that did not tell their labels.
    """
    counts = np.nansum(cohort.confusion, axis=(0, 3))
    own = counts.sum(1)
    if not own.any():
        return np.full(len(cohort.clients), math.nan)
    others = 1 - counts / np.maximum(counts.sum(0), 1e-9)
    shared: Array = np.where(own > 0, (counts * others).sum(1) / np.maximum(own, 1e-9), math.nan)
    return shared


def is_alone_with(cohort: Cohort, place: int, label: int) -> bool:
    """Whether hardly anybody else has samples of this label, so that nobody can say how they should look."""
    counts = np.nansum(cohort.confusion, axis=(0, 3))[:, label]
    return bool(counts.sum() - counts[place] < _HARDLY * counts.sum())
