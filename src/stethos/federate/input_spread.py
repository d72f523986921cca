"""How the change of a first layer is spread over its inputs, and over directions of them, beside the other clients'."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.fingerprint import Fingerprint

Vector = npt.NDArray[Any]
_GROUPS = 5
_LEAST = 1e-9  # of a squared change: below is rounding
_AT_ONCE = 64
_CLEAR_OF_SIDE = 2  # times as many rows of the others' as directions


def spread_over_inputs(prints: Sequence[Fingerprint], weights: Vector) -> tuple[Vector, Vector]:
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


def spread_over_directions(prints: Sequence[Fingerprint], weights: Vector, outputs: int) -> Vector:
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
