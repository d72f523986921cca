"""The updates of one round compared with each other, from their fingerprints alone.

A thousand clients' sketches are two megabytes, of which no copy is made: what is computed from them in
double precision is computed for a few clients at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.fingerprint import Fingerprint
from stethos.federate.history import History
from stethos.federate.input_spread import spread_over_directions, spread_over_inputs
from stethos.federate.sketch import Plan

Vector = npt.NDArray[Any]
_ITERATIONS = 50
_DEVIATIONS = 3.0
_AT_ONCE = 64
_MOST_PAIRWISE = 128


@dataclass(frozen=True, slots=True)
class Comparison:
    """One entry or row per client; matrices have a column per layer and, last, one for all weights together.

    NaN where a quantity cannot be told (a single client, an update of zeros, no
    past). `weights` are the shares of the clients in the robust centre.
    """

    weights: Vector
    # Matrices:
    norm_ratio: Vector
    cos_centre: Vector
    cos_error: Vector
    sign_agreement: Vector
    # Of whole updates only:
    cos_last: Vector
    cos_self: Vector
    cos_back: Vector
    back_rounds: Vector
    input_cos: Vector
    input_focus: Vector
    input_tail: Vector


def compare(plan: Plan, prints: Sequence[Fingerprint], history: History) -> Comparison:
    """Compare each update with the robust centre of the others, and with the past."""
    is_finite = np.array([one.is_finite and bool(np.isfinite(one.sketch).all()) for one in prints])
    sketches = _Rows([_finite(one.sketch, known) for one, known in zip(prints, is_finite.tolist(), strict=True)])
    weights = _centre_weights(plan, sketches, is_finite)
    inner, own, rest = _products(plan, sketches, weights)
    norms = np.stack([one.norms for one in prints])
    middle = np.median(norms[is_finite], axis=0) if is_finite.any() else np.full(norms.shape[1], math.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(middle > 0, norms / middle, math.nan)
        cosines = np.clip(inner / np.sqrt(own * rest), -1, 1)
    lengths = np.sqrt(own[:, -1])
    back, rounds = _way_back(plan, sketches, lengths, history)
    input_cos, input_focus = spread_over_inputs(prints, weights)
    return Comparison(
        weights=weights,
        norm_ratio=ratio,
        cos_centre=cosines,
        cos_error=np.where(np.isnan(cosines), math.nan, _cosine_error(plan, own, rest)),
        sign_agreement=_sign_agreement(plan, prints, weights),
        cos_last=_to_last_change(plan, sketches, lengths, history),
        cos_self=_to_last_own(plan, prints, lengths, history),
        cos_back=back,
        back_rounds=rounds,
        input_cos=input_cos,
        input_focus=input_focus,
        input_tail=spread_over_directions(prints, weights),
    )


def quantities_of(plan: Plan, prints: Sequence[Fingerprint], compared: Comparison) -> dict[str, Vector]:
    """What the verdict on clients rests on: numbers of whole updates, one per client, and the change of the bias."""
    names = (
        "norm_ratio", "cos_centre", "sign_agreement", "cos_last", "cos_self", "cos_back", "back_rounds", "input_cos",
        "input_focus", "input_tail",
    )  # fmt: skip
    layers = plan.structure.layers[: plan.structure.weights]
    matrices = [number for number, layer in enumerate(layers) if not layer.name.endswith("bias")] or [0]
    zeros = np.array([(one.signs == 0) @ plan.sign_member[:, -1] for one in prints])
    return {name: last_column(getattr(compared, name)) for name in names} | {
        "norm": np.array([one.norm for one in prints]),
        "odd": np.array([one.nan[-1] + one.inf[-1] for one in prints]),
        "first_ratio": compared.norm_ratio[:, matrices[0]],
        "last_ratio": compared.norm_ratio[:, matrices[-1]],
        "zero_share": zeros / plan.sign_member[:, -1].sum(),
        "bias": np.stack([_bias_of(one) for one in prints]),
    }


def _bias_of(one: Fingerprint) -> Vector:
    rows = one.output_rows
    return rows[2] if rows is not None and len(rows) > 2 else np.array([math.nan])


def last_column(values: Vector) -> Vector:
    """A quantity of whole updates."""
    return values[:, -1] if values.ndim > 1 else values


class _Rows:
    """A vector per client in double precision: of few clients all at once, of many some at a time."""

    def __init__(self, vectors: Sequence[Vector]) -> None:
        self._vectors = vectors
        self.together = np.stack(vectors, dtype=np.float64) if len(vectors) <= _MOST_PAIRWISE else None

    def __len__(self) -> int:
        return len(self._vectors)

    def parts(self, columns: int | None = None) -> Iterator[tuple[slice, Vector]]:
        """The clients of each part, and their vectors, or the first columns of them; not to be written to."""
        if self.together is not None:
            yield slice(0, len(self)), self.together[:, :columns]
            return
        for start in range(0, len(self), _AT_ONCE):
            place = slice(start, start + _AT_ONCE)
            yield place, np.stack(self._vectors[place], dtype=np.float64)[:, :columns]

    def mean(self, weights: Vector, columns: int | None = None) -> Vector:
        """The sum of the vectors times their weights."""
        return np.asarray(sum(weights[place] @ part for place, part in self.parts(columns)))


def _finite(sketch: Vector, is_finite: bool) -> Vector:
    return sketch if is_finite else np.nan_to_num(sketch, posinf=0.0, neginf=0.0)


def _centre_weights(plan: Plan, sketches: _Rows, is_finite: npt.NDArray[np.bool_]) -> Vector:
    """The shares of the updates in their geometric median (Weiszfeld's iteration), 0 for non-finite ones.

    A geometric median is a weighted mean, so its sketch is the same mean of
    the sketches. It stays near the majority however far the others lie.
    """
    weights = np.where(is_finite, 1.0, 0.0)
    if not is_finite.any():
        return weights
    weights /= weights.sum()
    squares, far = _distances(sketches, plan.weight_buckets)
    scale = math.sqrt(float(np.median(squares[is_finite]))) or 1.0
    for _ in range(_ITERATIONS):
        distance = np.sqrt(np.maximum(far(weights), 0.0))
        fresh = np.where(is_finite, 1 / np.maximum(distance, 1e-6 * scale), 0.0)
        fresh /= fresh.sum()
        is_settled = np.abs(fresh - weights).max() < 1e-6
        weights = fresh
        if is_settled:
            break
    return weights


def _distances(sketches: _Rows, columns: int) -> tuple[Vector, Callable[[Vector], Vector]]:
    """The squared lengths of the rows, and a function from weights to the squared distances to their weighted mean."""
    if sketches.together is not None:  # then all inner products are cheaper than all sketches again and again
        double = sketches.together[:, :columns]
        pairs = double @ double.T
        squares = np.diagonal(pairs)

        def far(weights: Vector) -> Vector:
            inner = pairs @ weights
            return np.asarray(squares - 2 * inner + weights @ inner)

        return squares, far
    lengths = np.concatenate([np.vecdot(part, part) for _, part in sketches.parts(columns)])

    def far_in_parts(weights: Vector) -> Vector:
        centre = sketches.mean(weights, columns)
        inner = np.concatenate([part @ centre for _, part in sketches.parts(columns)])
        return np.asarray(lengths - 2 * inner + centre @ centre)

    return lengths, far_in_parts


def _products(plan: Plan, sketches: _Rows, weights: Vector) -> tuple[Vector, Vector, Vector]:
    """Inner products, by layer, of each update with the others' centre, with itself, and of that centre with itself."""
    centre = sketches.mean(weights)
    inner, own, rest = np.empty((3, len(sketches), len(plan.parts) + 1))
    for place, mine in sketches.parts():
        others = weights[place, None] * mine
        np.subtract(centre, others, out=others)  # times (1 - weight), which no cosine minds
        products = mine * others
        inner[place] = plan.by_layer(products)
        own[place] = plan.by_layer(np.square(mine, out=products))
        rest[place] = plan.by_layer(np.square(others, out=others))
    return inner, own, rest


def _cosines(plan: Plan, sketches: _Rows, lengths: Vector, ways: Sequence[Vector]) -> Vector:
    """A row per client, a column per direction; NaN where one of the two is zero."""
    directions = np.stack(ways)[:, : plan.weight_buckets].astype(np.float64)
    inner = np.concatenate([part @ directions.T for _, part in sketches.parts(plan.weight_buckets)])
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = inner / (lengths[:, None] * np.sqrt(np.vecdot(directions, directions)))
    return np.asarray(np.clip(cosines, -1, 1))


def _to_last_change(plan: Plan, sketches: _Rows, lengths: Vector, history: History) -> Vector:
    """The cosine of each update to the previous round's change of the global model; NaN in the first round."""
    if not history.changes:
        return _nothing(lengths)
    return _cosines(plan, sketches, lengths, [history.changes[-1]])[:, 0]


def _to_last_own(plan: Plan, prints: Sequence[Fingerprint], lengths: Vector, history: History) -> Vector:
    """The cosine of each client's update to its previous one; NaN where there is none."""
    found = _nothing(prints)
    for number, one in enumerate(prints):
        last = history.own.get(one.client)
        if last is not None:
            last = last[: plan.weight_buckets].astype(np.float64)
            length = lengths[number] * math.sqrt(last @ last)
            found[number] = last @ one.sketch[: plan.weight_buckets] / length if length else math.nan
    return np.clip(found, -1, 1)


def _cosine_error(plan: Plan, own: Vector, rest: Vector) -> Vector:
    """Three standard deviations: a layer errs by one over the root of its buckets, the whole by each layer's share."""
    layers = plan.structure.weights
    errors = plan.cosine_errors
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = own[:, :layers] * rest[:, :layers] / (own[:, -1:] * rest[:, -1:])
        whole = np.sqrt((shares * np.square(errors[:layers])).sum(1))
    return _DEVIATIONS * np.column_stack([np.broadcast_to(errors, (len(own), len(errors))), whole])


def _way_back(plan: Plan, sketches: _Rows, lengths: Vector, history: History) -> tuple[Vector, Vector]:
    """The largest cosine to the way back to an earlier global model, and how many rounds back that lies."""
    ways = history.ways_back()
    if not ways:
        return _nothing(lengths), _nothing(lengths)
    cosines = _cosines(plan, sketches, lengths, ways)
    best = np.argmax(np.where(np.isnan(cosines), -2.0, cosines), axis=1)
    found = cosines[np.arange(len(best)), best]
    return found, np.where(np.isnan(found), math.nan, best + 1.0)


def _sign_agreement(plan: Plan, prints: Sequence[Fingerprint], weights: Vector) -> Vector:
    """Of the elements at the sampled places that moved: the share that moved as the others' weighted majority did."""
    signs = _Rows([one.signs for one in prints])
    total = signs.mean(weights)
    agreement = np.empty((len(prints), len(plan.parts) + 1))
    for place, mine in signs.parts():
        others = total - weights[place, None] * mine
        is_clear = np.abs(others) > 1e-12
        is_known = is_clear & (mine != 0)
        is_same = is_known & (np.sign(others) == mine)
        with np.errstate(invalid="ignore", divide="ignore"):
            agreement[place] = (is_same @ plan.sign_member) / (is_known @ plan.sign_member)
    return agreement


def _nothing(rows: Sequence[Any] | Vector) -> Vector:
    return np.full(len(rows), math.nan)
