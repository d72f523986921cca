"""A batch as rows of at most 64 numbers, with what identifies each row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from stethos.federate.loss_batch import Batch

Array = npt.NDArray[Any]
FEATURES = 64
COLUMNS = 128
_LARGEST = 1e30
_MOST_VALUES, _MOST_ANSWERS = 4, 8  # of a regression; of several answers of yes and no
_MIX = np.random.default_rng(5).integers(1, 1 << 62, COLUMNS * 4, np.int64) | 1


@dataclass(frozen=True, eq=False)
class BatchRows:
    """`features` are comparable coordinates of the samples, `columns` (some of) their numbers as they came.

    Inputs of up to 64 numbers are their own features, larger ones are averaged over neighbours, tokens counted in
    buckets; numbers go through asinh, so that a few large ones do not hide the rest. `labels` are classes, or None;
    `values` what a regression is to answer. `keys` are equal for equal inputs.
    """

    kind: Literal["numbers", "tokens"]
    features: Array
    columns: Array
    keys: Array
    odd_share: float  # of numbers that are not finite
    width: int
    labels: Array | None = None
    values: Array | None = None
    tokens: tuple[Array, Array] | None = None  # which sample, which token


def rows_of(batch: Batch, most: int) -> BatchRows | None:
    """The first `most` rows of a batch; None where it has no inputs."""
    with torch.no_grad():
        labels, values = _targets(batch, most)
        if batch.tokens is not None:
            return _token_rows(batch, most, labels, values)
        if batch.inputs is None:
            return None
        inputs = batch.inputs[:most].to(torch.float32)
        flat = inputs.reshape(len(inputs), -1)
        stride = -(-flat.shape[1] // COLUMNS)
        numbers = np.ascontiguousarray(flat[:, ::stride].cpu().numpy())
        features = _pooled(inputs).cpu().numpy()
    is_odd = ~np.isfinite(features)
    keys = _keys(numbers.view(np.int32)) + _keys(np.ascontiguousarray(features).view(np.int32))
    clean = np.arcsinh(np.clip(np.where(is_odd, 0.0, features), -_LARGEST, _LARGEST)).astype(np.float64)
    return BatchRows("numbers", clean, numbers, keys, float(is_odd.mean()), flat.shape[1], labels, values)


def repeated_by_chance(rows: BatchRows) -> float:
    """The share of a batch that would repeat another sample of it if its columns, or its words, were drawn one by one.

    One or two words of a few make equal samples; sixty pixels do not.
    """
    count = len(rows.keys)
    if rows.columns.shape[1]:
        alike = math.prod(_alike(rows.columns[:, place]) for place in range(rows.columns.shape[1]))
    elif rows.tokens is not None:
        samples, tokens = rows.tokens
        words = _alike(tokens)
        lengths, often = np.unique(np.bincount(samples, minlength=count), return_counts=True)
        alike = float((((often / count) ** 2) * words**lengths).sum())
    else:
        return 0.0
    if count < 2 or alike <= 0:
        return 0.0
    different = -math.expm1(count * math.log1p(-min(alike, 1 - 1e-9))) / alike
    return max(0.0, 1 - (different - 1) / (count - 1))


def _alike(values: Array) -> float:
    """How often two of these are equal."""
    return float(((np.unique(values, return_counts=True)[1] / len(values)) ** 2).sum())


def _pooled(inputs: torch.Tensor) -> torch.Tensor:
    """At most 64 numbers per sample: those of neighbouring pixels or places are averaged."""
    flat = inputs.reshape(len(inputs), -1)
    if flat.shape[1] <= FEATURES:
        return flat
    if inputs.dim() == 4 and inputs.shape[1] <= 4:
        side = 8 if inputs.shape[1] == 1 else 4
        return torch.nn.functional.adaptive_avg_pool2d(inputs, side).reshape(len(inputs), -1)
    return torch.nn.functional.adaptive_avg_pool1d(flat[:, None], FEATURES)[:, 0]


def _token_rows(batch: Batch, most: int, labels: Array | None, values: Array | None) -> BatchRows | None:
    assert batch.tokens is not None
    tokens = batch.tokens.cpu().numpy()
    if batch.offsets is None:
        tokens = tokens[:most].reshape(min(len(tokens), most), -1)
        count, width = tokens.shape
        samples = np.repeat(np.arange(count), width)
        columns, flat = tokens[:, :COLUMNS], tokens.reshape(-1)
    else:
        offsets = batch.offsets.cpu().numpy()
        if len(offsets) > most:
            tokens, offsets = tokens[: offsets[most]], offsets[:most]
        count, lengths = len(offsets), np.diff(np.append(offsets, len(tokens)))
        samples, flat = np.repeat(np.arange(count), lengths), tokens
        width = int(lengths.max(initial=0))
        is_even = width > 0 and int(lengths.min()) == width
        columns = flat.reshape(count, width)[:, :COLUMNS] if is_even else np.zeros((count, 0), np.int64)
    if not count or not width:
        return None
    buckets = (flat.astype(np.int64) * 2_654_435_761 >> 16) % FEATURES
    counts = np.bincount(samples * FEATURES + buckets, minlength=count * FEATURES).reshape(count, FEATURES)
    keys = np.bincount(samples, weights=((flat * 40_503 + 77) % 1_000_003) * 1.0, minlength=count).astype(np.int64)
    keys = keys * 31 + _keys(columns.astype(np.int32)) + _keys(counts.astype(np.int32))
    features = np.sqrt(counts / np.maximum(counts.sum(1, keepdims=True), 1))
    return BatchRows("tokens", features, columns.astype(np.float64), keys, 0.0, width, labels, values, (samples, flat))


def _targets(batch: Batch, most: int) -> tuple[Array | None, Array | None]:
    """Classes, or the numbers to be predicted; neither where a sample has many labels.

    Several answers of yes and no, as of tags or of thresholds between grades, are numbers.
    """
    if batch.labels is None or not batch.labels.dim() or batch.labels.shape[0] != batch.rows:
        return None, None
    flat = batch.labels[:most].reshape(min(batch.rows, most), -1).cpu().numpy()
    if batch.target == "classes":
        return (flat[:, 0].astype(np.int64), None) if flat.shape[1] == 1 else (None, None)
    if batch.target == "binary" and flat.shape[1] == 1 and np.isin(flat, (-1, 0, 1)).all():
        return (flat[:, 0] > 0).astype(np.int64), None
    if batch.target == "binary" and 1 < flat.shape[1] <= _MOST_ANSWERS:
        return None, flat.astype(np.float64)
    if batch.target == "values" and flat.shape[1] <= _MOST_VALUES:
        return None, flat.astype(np.float64)
    return None, None


def _keys(bits: Array) -> Array:
    """One number per row, equal for equal rows."""
    with np.errstate(over="ignore"):
        keys: Array = bits.astype(np.int64) @ _MIX[: bits.shape[1]]
    return keys
