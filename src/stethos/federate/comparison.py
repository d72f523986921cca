"""The updates of one round measured, and compared with each other and with the past, from their fingerprints alone.

What is made here are columns of `updates` by name: a number per client of whole updates, or a row per client with a
number for every layer and, last, one for all weights together. A thousand clients' sketches are two megabytes, of
which no copy is made: what is computed from them in double precision is computed for a few clients at a time.
"""

from __future__ import annotations

import functools
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.fingerprint import Fingerprint
from stethos.federate.sketch import SketchPlan
from stethos.schema import COMPARED_REPORTS

Vector = npt.NDArray[Any]
Columns = dict[str, Vector]
Facts = Mapping[str, Mapping[str, Any]]  # by client: what it reports of its training
_BACK = 5  # global models before the present one
_RECENT_ROUNDS = 12
_MOST_CLIENTS = 10_000
_ITERATIONS = 50
_DEVIATIONS = 3.0
_AT_ONCE = 64
_MOST_PAIRWISE = 128
_GROUPS = 5
_LEAST = 1e-9  # of a squared change: below is rounding
_CLEAR_OF_SIDE = 2  # times as many rows of the others' as directions


class History:
    """What earlier rounds leave behind: sketches of the global model's changes and of each client's last update, and
    the last rounds' columns for verdicts (`recent`, see `round_columns`)."""

    def __init__(self) -> None:
        self.changes: deque[Vector] = deque(maxlen=_BACK + 1)  # the newest last
        self.total: Vector | None = None
        self.own: dict[str, Vector] = {}
        self.recent: deque[dict[str, Any]] = deque(maxlen=_RECENT_ROUNDS)

    def add(self, change: Vector, prints: Sequence[Fingerprint]) -> None:
        self.changes.append(change)
        self.total = change if self.total is None else self.total + change
        for one in prints:
            if one.is_finite and (one.client in self.own or len(self.own) < _MOST_CLIENTS):
                self.own[one.client] = one.sketch.copy()  # it is a row of a larger matrix

    def ways_back(self) -> list[Vector]:
        """From the present global model to those of 1, 2, ... rounds ago."""
        ways: list[Vector] = []
        for change in reversed(self.changes):
            ways.append(-change if not ways else ways[-1] - change)
        return ways[:_BACK]


def measure(plan: SketchPlan, prints: Sequence[Fingerprint], base_norms: Vector | None = None) -> Columns:
    """The columns of `updates` that each update has by itself; `base_norms` are the global model's, if known."""
    shape = (len(prints), len(plan.all_sizes))
    nan, inf = np.stack([one.nan for one in prints]), np.stack([one.inf for one in prints])
    norms = np.stack([one.norms for one in prints])
    zeros = np.stack([one.signs for one in prints]) == 0
    with np.errstate(invalid="ignore"):
        columns = {
            "norm": np.where((nan + inf >= plan.all_sizes) & (plan.all_sizes > 0), math.nan, norms),
            "zero_share": (zeros @ plan.sign_member) / plan.sign_member.sum(0),
            "nan": nan,
            "inf": inf,
            "size": np.broadcast_to(plan.all_sizes, shape),
            "coverage": np.broadcast_to(plan.all_coverage, shape),
        }
    return columns if base_norms is None else {**columns, "base_norm": np.broadcast_to(base_norms, shape)}


def compare(plan: SketchPlan, prints: Sequence[Fingerprint], history: History) -> Columns:
    """The columns of `updates` that compare each update with the robust centre of the others, and with the past.

    NaN where a quantity cannot be told (a single client, an update of zeros, no past).
    """
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
    input_cos, input_focus = _spread_over_inputs(prints, weights)
    outputs = 0 if plan.input is None else int(plan.structure.layers[plan.input].shape[0])
    return {
        "norm_ratio": ratio,
        "cos_centre": cosines,
        "cos_error": np.where(np.isnan(cosines), math.nan, _cosine_error(plan, own, rest)),
        "sign_agreement": _sign_agreement(plan, prints, weights),
        "cos_last": _to_last_change(plan, sketches, lengths, history),
        "cos_self": _to_last_own(plan, prints, lengths, history),
        "cos_back": back,
        "back_rounds": rounds,
        "input_cos": input_cos,
        "input_focus": input_focus,
        "input_tail": _spread_over_directions(prints, weights, outputs),
    }


def round_columns(
    plan: SketchPlan, number: int, prints: Sequence[Fingerprint], columns: Columns, facts: Facts
) -> dict[str, Any]:
    """A round as `cohort_of` takes it: the columns of whole updates, and of what their clients report."""
    layers = plan.structure.layers[: plan.structure.weights]
    matrices = [place for place, layer in enumerate(layers) if not layer.name.endswith("bias")] or [0]
    mine = [facts.get(one.client, {}) for one in prints]
    return {
        "round": [number] * len(prints),
        "client": [one.client for one in prints],
        **{name: values[:, -1] if values.ndim > 1 else values for name, values in columns.items()},
        "first_ratio": columns["norm_ratio"][:, matrices[0]],
        "last_ratio": columns["norm_ratio"][:, matrices[-1]],
        "bias": [None if one.output_rows is None or len(one.output_rows) < 3 else one.output_rows[2] for one in prints],
        **{name: _reported([fact.get(name) for fact in mine], name) for name in COMPARED_REPORTS},
    }


def _reported(values: Sequence[Any], name: str) -> Any:
    if name == "confusion":
        return values
    return np.array([math.nan if value is None else float(value) for value in values])


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


def _centre_weights(plan: SketchPlan, sketches: _Rows, is_finite: npt.NDArray[np.bool_]) -> Vector:
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


def _products(plan: SketchPlan, sketches: _Rows, weights: Vector) -> tuple[Vector, Vector, Vector]:
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


def _cosines(plan: SketchPlan, sketches: _Rows, lengths: Vector, ways: Sequence[Vector]) -> Vector:
    """A row per client, a column per direction; NaN where one of the two is zero."""
    directions = np.stack(ways)[:, : plan.weight_buckets].astype(np.float64)
    inner = np.concatenate([part @ directions.T for _, part in sketches.parts(plan.weight_buckets)])
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = inner / (lengths[:, None] * np.sqrt(np.vecdot(directions, directions)))
    return np.asarray(np.clip(cosines, -1, 1))


def _to_last_change(plan: SketchPlan, sketches: _Rows, lengths: Vector, history: History) -> Vector:
    """The cosine of each update to the previous round's change of the global model; NaN in the first round."""
    if not history.changes:
        return _nothing(lengths)
    return _cosines(plan, sketches, lengths, [history.changes[-1]])[:, 0]


def _to_last_own(plan: SketchPlan, prints: Sequence[Fingerprint], lengths: Vector, history: History) -> Vector:
    """The cosine of each client's update to its previous one; NaN where there is none."""
    found = _nothing(prints)
    for number, one in enumerate(prints):
        last = history.own.get(one.client)
        if last is not None:
            last = last[: plan.weight_buckets].astype(np.float64)
            length = lengths[number] * math.sqrt(last @ last)
            found[number] = last @ one.sketch[: plan.weight_buckets] / length if length else math.nan
    return np.clip(found, -1, 1)


def _cosine_error(plan: SketchPlan, own: Vector, rest: Vector) -> Vector:
    """Three standard deviations: a layer errs by one over the root of its buckets, the whole by each layer's share."""
    layers = plan.structure.weights
    errors = plan.cosine_errors
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = own[:, :layers] * rest[:, :layers] / (own[:, -1:] * rest[:, -1:])
        whole = np.sqrt((shares * np.square(errors[:layers])).sum(1))
    return _DEVIATIONS * np.column_stack([np.broadcast_to(errors, (len(own), len(errors))), whole])


def _way_back(plan: SketchPlan, sketches: _Rows, lengths: Vector, history: History) -> tuple[Vector, Vector]:
    """The largest cosine to the way back to an earlier global model, and how many rounds back that lies."""
    ways = history.ways_back()
    if not ways:
        return _nothing(lengths), _nothing(lengths)
    cosines = _cosines(plan, sketches, lengths, ways)
    best = np.argmax(np.where(np.isnan(cosines), -2.0, cosines), axis=1)
    found = cosines[np.arange(len(best)), best]
    return found, np.where(np.isnan(found), math.nan, best + 1.0)


def _sign_agreement(plan: SketchPlan, prints: Sequence[Fingerprint], weights: Vector) -> Vector:
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


# How the change of a first layer is spread over its inputs ---------------------------------------------


def _spread_over_inputs(prints: Sequence[Fingerprint], weights: Vector) -> tuple[Vector, Vector]:
    """Per client: the cosine of its spread over the inputs to the others', and by how much its largest share exceeds
    theirs. NaN where no first layer was read."""
    cosines, focus = np.full(len(prints), math.nan), np.full(len(prints), math.nan)
    if any(one.inputs is None for one in prints):
        return cosines, focus
    places = range(0, len(prints), _AT_ONCE)
    total, left = 0.0, float(weights.sum())
    for start in places:
        shares = _shares(prints[start : start + _AT_ONCE])
        mine = np.where(np.isnan(shares[:, 0]), 0.0, weights[start : start + _AT_ONCE])
        total = total + mine @ np.nan_to_num(shares)
    for start in places:
        part = slice(start, start + _AT_ONCE)
        shares = _shares(prints[part])
        mine = np.where(np.isnan(shares[:, 0]), 0.0, weights[part])[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            others = np.maximum((total - np.nan_to_num(shares) * mine) / (left - mine), 0.0)
            length = np.sqrt(shares.sum(1) * others.sum(1))
            cosines[part] = np.clip(np.sqrt(shares * others).sum(1) / length, -1, 1)
            focus[part] = (shares - others).max(1)
    return cosines, focus


def _shares(prints: Sequence[Fingerprint]) -> Vector:
    """Of the squared change, what each input has; NaN where there is no change."""
    energies = np.stack([one.inputs for one in prints if one.inputs is not None]).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Vector = energies / energies.sum(1, keepdims=True)
    return found


def _spread_over_directions(prints: Sequence[Fingerprint], weights: Vector, outputs: int) -> Vector:
    """How much more than the others' a first layer changed in directions of the inputs that the others hardly use.

    The logarithm of the ratio of two shares: of the client's squared change, and of the others', in the half of the
    directions where the others have least. Noise, in the inputs or in the update, goes in all directions
    alike, what is learnt from real data does not. "The others" are those of other groups of clients than its own.
    NaN where a layer of so few `outputs` changes in so few directions that even all others together leave half of them
    out: what is left would tell the size of a group, not its clients.
    """
    found = np.full(len(prints), math.nan)
    in_order = sorted(range(len(prints)), key=lambda number: prints[number].client)  # not that of their arrival
    known = np.array([number for number in in_order if prints[number].input_gram is not None], dtype=int)
    if len(known) < 2:
        return found
    group = np.arange(len(known)) % _GROUPS
    groups = min(_GROUPS, len(known))
    share = np.where(group == np.arange(groups)[:, None], np.maximum(weights[known], 1e-12), 0.0)  # a row per group
    places = [slice(start, start + _AT_ONCE) for start in range(0, len(known), _AT_ONCE)]
    sums: Vector = sum(share[:, place] @ _grams(prints, known[place]) for place in places)  # type: ignore[assignment]
    side = (math.isqrt(8 * sums.shape[1] + 1) - 1) // 2
    if outputs * (len(known) - math.ceil(len(known) / groups)) < _CLEAR_OF_SIDE * side:
        return found
    upper, times = _triangle(side)
    shares = share.sum(1)
    packed = (sums.sum(0) - sums) / (shares.sum() - shares)[:, None]
    centres = np.zeros((groups, side * side))
    centres[:, upper] = packed
    low = _least_directions(centres.reshape(groups, side, side))
    onto = (low @ low.transpose(0, 2, 1)).reshape(groups, -1).take(upper, axis=1)
    onto *= times  # a product with it is the part of a matrix in those directions
    typical = np.maximum(np.vecdot(onto, packed), _LEAST)
    for place in places:
        own = np.maximum(np.vecdot(_grams(prints, known[place]), onto[group[place]]), _LEAST)
        found[known[place]] = np.log(own / typical[group[place]])
    return found


def _grams(prints: Sequence[Fingerprint], numbers: Vector) -> Vector:
    return np.stack([prints[number].input_gram for number in numbers.tolist()]).astype(np.float64)


@functools.cache
def _triangle(side: int) -> tuple[Vector, Vector]:
    """The places of the upper triangle in a flattened matrix, and how often each stands for an element of it."""
    row, column = np.triu_indices(side)
    return row * side + column, np.where(row == column, 1.0, 2.0)


def _least_directions(matrices: Vector) -> Vector:
    """For each matrix, given by its upper triangle, the half of its eigenvectors with the smallest eigenvalues.

    With torch in single precision, which takes half the time. That turns a direction by about 1e-7, towards those
    whose eigenvalues are nearly the same most: what lies in all of them together is changed by the square of that.
    """
    half = matrices.shape[1] // 2
    torch = sys.modules.get("torch")
    if torch is None or torch._C._len_torch_dispatch_stack():
        return np.linalg.eigh(matrices, UPLO="U")[1][..., :half]
    _, vectors = torch.linalg.eigh(torch.from_numpy(matrices.astype(np.float32)), UPLO="U")
    return np.asarray(vectors[..., :half].numpy(), dtype=np.float64)
