"""The updates of one round compared with each other, from their fingerprints alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.fingerprint import Fingerprint
from stethos.federate.sketch import Plan

Vector = npt.NDArray[Any]
_ITERATIONS = 50
_DEVIATIONS = 3.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """One matrix per quantity: a row per client, a column per layer and, last, one for all weights together.

    NaN where a quantity cannot be told (a single client, an update of zeros).
    `weights` are the shares of the clients in the robust centre.
    """

    weights: Vector
    norm_ratio: Vector
    cos_centre: Vector
    cos_error: Vector
    sign_agreement: Vector


def compare(plan: Plan, prints: Sequence[Fingerprint]) -> Comparison:
    """Compare each update with the robust centre of the others."""
    count, columns = len(prints), len(plan.parts) + 1
    sketches = np.stack([one.sketch for one in prints]).astype(np.float64)
    is_finite = np.array([one.is_finite for one in prints])
    weights = centre_weights(sketches[:, : plan.weight_buckets], is_finite)
    centre = weights @ sketches
    others = centre - weights[:, None] * sketches  # times (1 - weight), which no cosine minds
    cosines = np.full((count, columns), math.nan)
    errors = np.full((count, columns), math.nan)
    for number, part in enumerate(plan.parts):
        place = slice(part.sketch_start, part.sketch_start + part.buckets)
        cosines[:, number] = cosine(sketches[:, place], others[:, place])
        errors[:, number] = 0.0 if part.is_exact else _DEVIATIONS / math.sqrt(part.buckets)
    own, rest = sketches[:, : plan.weight_buckets], others[:, : plan.weight_buckets]
    cosines[:, -1] = cosine(own, rest)
    errors[:, -1] = cosine_error(plan, own, rest)
    norms = np.stack([one.norms for one in prints])
    middle = np.median(norms[is_finite], axis=0) if is_finite.any() else np.full(columns, math.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(middle > 0, norms / middle, math.nan)
    return Comparison(weights, ratio, cosines, errors, _sign_agreement(plan, prints, weights))


def centre_weights(sketches: Vector, is_finite: npt.NDArray[np.bool_]) -> Vector:
    """The shares of the updates in their geometric median (Weiszfeld's iteration), 0 for non-finite ones.

    A geometric median is a weighted mean, so its sketch is the same mean of
    the sketches. It stays near the majority however far the others lie.
    """
    weights = np.where(is_finite, 1.0, 0.0)
    if not is_finite.any():
        return weights
    weights /= weights.sum()
    with np.errstate(over="ignore"):
        squares = np.square(sketches).sum(1)
    scale = math.sqrt(float(np.median(squares[is_finite]))) or 1.0
    for _ in range(_ITERATIONS):
        centre = weights @ np.where(is_finite[:, None], sketches, 0.0)
        distance = np.sqrt(np.maximum(squares - 2 * sketches @ centre + centre @ centre, 0.0))
        fresh = np.where(is_finite, 1 / np.maximum(distance, 1e-6 * scale), 0.0)
        fresh /= fresh.sum()
        is_settled = np.abs(fresh - weights).max() < 1e-6
        weights = fresh
        if is_settled:
            break
    return weights


def cosine(a: Vector, b: Vector) -> Vector:
    """Row by row; NaN where one of the two is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Vector = (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))
    return np.clip(found, -1, 1)


def cosine_error(plan: Plan, a: Vector, b: Vector) -> Vector:
    """Three standard deviations of the cosine of whole sketches: each layer errs by its share of both."""
    total = np.zeros(np.broadcast_shapes(a.shape[:-1], b.shape[:-1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        for part in plan.parts[: plan.structure.weights]:
            if not part.is_exact:
                place = slice(part.sketch_start, part.sketch_start + part.buckets)
                total = total + np.square(a[..., place]).sum(-1) * np.square(b[..., place]).sum(-1) / part.buckets
        error: Vector = _DEVIATIONS * np.sqrt(total / (np.square(a).sum(-1) * np.square(b).sum(-1)))
    return error


def _sign_agreement(plan: Plan, prints: Sequence[Fingerprint], weights: Vector) -> Vector:
    """Of the elements at the sampled places that moved: the share that moved as the others' weighted majority did."""
    signs = np.stack([one.signs for one in prints]).astype(np.float64)
    others = np.sign(weights @ signs - weights[:, None] * signs)
    others = np.where(np.abs(weights @ signs - weights[:, None] * signs) > 1e-12, others, 0.0)
    is_known = (signs != 0) & (others != 0)
    agrees = is_known & (signs == others)
    agreement = np.full((len(prints), len(plan.parts) + 1), math.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        for number, part in enumerate(plan.parts[: plan.structure.weights]):
            mine = (plan.sign_places >= part.start) & (plan.sign_places < part.stop)
            agreement[:, number] = agrees[:, mine].sum(1) / is_known[:, mine].sum(1)
        agreement[:, -1] = agrees.sum(1) / is_known.sum(1)
    return agreement
