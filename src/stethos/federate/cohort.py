"""The updates of one round compared with each other, from their fingerprints alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.fingerprint import Fingerprint
from stethos.federate.history import History
from stethos.federate.sketch import Plan

Vector = npt.NDArray[Any]
_ITERATIONS = 50
_DEVIATIONS = 3.0
_GROUPS = 5
_LEAST = 1e-9  # of a squared change: below is rounding


@dataclass(frozen=True, slots=True)
class Comparison:
    """One matrix per quantity: a row per client, a column per layer and, last, one for all weights together.

    NaN where a quantity cannot be told (a single client, an update of zeros, no
    past). `weights` are the shares of the clients in the robust centre.
    """

    weights: Vector
    norm_ratio: Vector
    cos_centre: Vector
    cos_error: Vector
    sign_agreement: Vector
    cos_last: Vector
    cos_self: Vector
    cos_back: Vector
    back_rounds: Vector
    input_cos: Vector
    input_focus: Vector
    input_tail: Vector


def compare(plan: Plan, prints: Sequence[Fingerprint], history: History) -> Comparison:
    """Compare each update with the robust centre of the others, and with the past."""
    sketches = np.stack([one.sketch for one in prints]).astype(np.float64)
    is_finite = np.array([one.is_finite for one in prints])
    weights = centre_weights(sketches[:, : plan.weight_buckets], is_finite)
    others = weights @ sketches - weights[:, None] * sketches  # times (1 - weight), which no cosine minds
    inner, own, rest = ((a * b) @ plan.bucket_member for a, b in ((sketches, others), (sketches,) * 2, (others,) * 2))
    norms = np.stack([one.norms for one in prints])
    middle = np.median(norms[is_finite], axis=0) if is_finite.any() else np.full(norms.shape[1], math.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(middle > 0, norms / middle, math.nan)
        cosines = np.clip(inner / np.sqrt(own * rest), -1, 1)
    back, rounds = _way_back(plan, sketches, history)
    input_cos, input_focus = _inputs(prints, weights)
    return Comparison(
        weights=weights,
        norm_ratio=ratio,
        cos_centre=cosines,
        cos_error=np.where(np.isnan(cosines), math.nan, _cosine_error(plan, own, rest)),
        sign_agreement=_sign_agreement(plan, prints, weights),
        cos_last=_last_column(plan, cosine(_weights(plan, sketches), _weights(plan, history.last(plan.buckets)))),
        cos_self=_last_column(plan, cosine(_weights(plan, sketches), _weights(plan, history.own_of(prints)))),
        cos_back=_last_column(plan, back),
        back_rounds=_last_column(plan, rounds),
        input_cos=_last_column(plan, input_cos),
        input_focus=_last_column(plan, input_focus),
        input_tail=_last_column(plan, _input_tail(prints, weights)),
    )


def quantities_of(plan: Plan, prints: Sequence[Fingerprint], compared: Comparison) -> dict[str, Vector]:
    """What the verdict on clients rests on: numbers of whole updates, one per client, and the change of the bias."""
    names = (
        "norm_ratio", "cos_centre", "sign_agreement", "cos_last", "cos_self", "cos_back", "back_rounds", "input_cos",
        "input_focus", "input_tail",
    )  # fmt: skip
    layers = plan.structure.layers[: plan.structure.weights]
    matrices = [number for number, layer in enumerate(layers) if not layer.name.endswith("bias")] or [0]
    zeros = np.stack([one.signs == 0 for one in prints]) @ plan.sign_member[:, -1]
    return {name: getattr(compared, name)[:, -1] for name in names} | {
        "norm": np.array([one.norm for one in prints]),
        "odd": np.array([one.nan[-1] + one.inf[-1] for one in prints]),
        "first_ratio": compared.norm_ratio[:, matrices[0]],
        "last_ratio": compared.norm_ratio[:, matrices[-1]],
        "zero_share": zeros / plan.sign_member[:, -1].sum(),
        "bias": np.stack([_bias_of(one) for one in prints]),
    }


def _bias_of(one: Fingerprint) -> Vector:
    rows = one.output_rows
    return np.asarray(rows["bias"] if rows is not None and "bias" in rows else [math.nan])


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


def _cosine_error(plan: Plan, own: Vector, rest: Vector) -> Vector:
    """Three standard deviations: a layer errs by one over the root of its buckets, the whole by each layer's share."""
    layers = plan.structure.weights
    errors = np.array([0.0 if part.is_exact else 1 / math.sqrt(part.buckets) for part in plan.parts])
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = own[:, :layers] * rest[:, :layers] / (own[:, -1:] * rest[:, -1:])
        whole = np.sqrt((shares * np.square(errors[:layers])).sum(1))
    return _DEVIATIONS * np.column_stack([np.broadcast_to(errors, (len(own), len(errors))), whole])


def _way_back(plan: Plan, sketches: Vector, history: History) -> tuple[Vector, Vector]:
    """The largest cosine to the way back to an earlier global model, and how many rounds back that lies."""
    ways = history.ways_back()
    if not ways:
        return np.full(len(sketches), math.nan), np.full(len(sketches), math.nan)
    cosines = np.stack([cosine(_weights(plan, sketches), _weights(plan, way)) for way in ways], axis=1)
    best = np.argmax(np.where(np.isnan(cosines), -2.0, cosines), axis=1)
    found = cosines[np.arange(len(best)), best]
    return found, np.where(np.isnan(found), math.nan, best + 1.0)


def _inputs(prints: Sequence[Fingerprint], weights: Vector) -> tuple[Vector, Vector]:
    """How the change of the first layer is spread over the inputs: cosine to the others' spread, and largest excess."""
    energies = [one.inputs for one in prints if one.inputs is not None]
    if not energies:
        return np.full(len(prints), math.nan), np.full(len(prints), math.nan)
    energy = np.stack(energies).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = energy / energy.sum(1, keepdims=True)
        known = np.nan_to_num(shares) * weights[:, None]
        left = weights.sum() - np.where(np.isnan(shares[:, 0]), 0.0, weights)
        others = (known.sum(0) - known) / left[:, None]
        return cosine(np.sqrt(shares), np.sqrt(np.maximum(others, 0.0))), (shares - others).max(1)


def _input_tail(prints: Sequence[Fingerprint], weights: Vector) -> Vector:
    """How much more than the others' a first layer changed in directions of the inputs that the others hardly use.

    The logarithm of the ratio of two shares: of the client's squared change, and of the others', in the half of the
    directions where the others have least. Noise, in the inputs or in the update, goes in all directions
    alike, what is learnt from real data does not. "The others" are those of other groups of clients than its own.
    """
    found = np.full(len(prints), math.nan)
    in_order = sorted(range(len(prints)), key=lambda number: prints[number].client)  # not that of their arrival
    known = np.array([number for number in in_order if prints[number].input_gram is not None], dtype=int)
    if len(known) < 2:
        return found
    packed = np.stack([prints[number].input_gram for number in known])
    side = (math.isqrt(8 * packed.shape[1] + 1) - 1) // 2
    upper = np.triu_indices(side)
    group = np.arange(len(known)) % _GROUPS
    share = np.maximum(weights[known], 1e-12)
    for number in range(min(_GROUPS, len(known))):
        inside, outside = group == number, group != number
        centre = np.zeros((side, side))
        centre[upper] = share[outside] @ packed[outside] / share[outside].sum()
        strength, directions = np.linalg.eigh(centre, UPLO="U")
        low = directions[:, : side // 2]
        typical = float(strength[: side // 2].sum())
        for place in known[inside].tolist():
            gram = np.zeros((side, side))
            gram[upper] = prints[place].input_gram
            gram += np.triu(gram, 1).T
            own = float(np.einsum("id,ij,jd->", low, gram, low, optimize=True))
            found[place] = math.log(max(own, _LEAST) / max(typical, _LEAST))
    return found


def _weights(plan: Plan, sketches: Vector) -> Vector:
    return sketches[..., : plan.weight_buckets]


def _last_column(plan: Plan, values: Vector) -> Vector:
    """A quantity of whole updates only."""
    matrix = np.full((len(values), len(plan.parts) + 1), math.nan)
    matrix[:, -1] = values
    return matrix


def _sign_agreement(plan: Plan, prints: Sequence[Fingerprint], weights: Vector) -> Vector:
    """Of the elements at the sampled places that moved: the share that moved as the others' weighted majority did."""
    signs = np.stack([one.signs for one in prints]).astype(np.float64)
    others = weights @ signs - weights[:, None] * signs
    others = np.where(np.abs(others) > 1e-12, np.sign(others), 0.0)
    is_known = (signs != 0) & (others != 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        agreement: Vector = ((is_known & (signs == others)) @ plan.sign_member) / (is_known @ plan.sign_member)
    return agreement
