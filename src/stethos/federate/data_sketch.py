"""A client's data in a few kilobytes: what its samples look like, class by class, without any sample of them.

Each sample counts once however often it is trained on; sketches of further samples add up.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.batch_rows import BatchRows

Array = npt.NDArray[Any]
_MOST_CLASSES = 32
_SCALED = 64  # columns of which the scale is kept
_MOST_TOKENS = 48
_KEPT_ROWS = 512
_FEWEST_ALIKE = 5
_MOST_MULTIPLIED, _MOST_PRODUCTS = 24, 32
_NEAREST = 3
_FEWEST_WORDS = 4  # of a text, to say how many of them repeat


class DataSketch:
    """Gathers samples, then writes them down once as a text."""

    def __init__(self) -> None:
        self._parts: list[tuple[BatchRows, Array]] = []
        self.rows = 0

    def add(self, rows: BatchRows, is_new: Array) -> None:
        """Those samples of a batch that were not seen before."""
        if is_new.any() and self.rows < _KEPT_ROWS:
            self._parts.append((rows, is_new))
            self.rows += int(is_new.sum())

    def text(self) -> str:
        """JSON: counts and short lists as they are, arrays as base64 of compressed numbers."""
        first = self._parts[0][0]
        parts = [(rows, mask) for rows, mask in self._parts if rows.width == first.width or first.kind == "tokens"]
        features = np.concatenate([rows.features[mask] for rows, mask in parts])
        values = _joined([None if rows.values is None else rows.values[mask] for rows, mask in parts])
        labels = _joined([None if rows.labels is None else rows.labels[mask] for rows, mask in parts])
        products = products_of(features) if first.kind == "numbers" else features[:, :0]
        joint = np.column_stack([features, products, *([] if values is None else [np.nan_to_num(values)])])
        groups = np.zeros(len(joint), np.int64) if labels is None else labels
        classes, counts = np.unique(groups, return_counts=True)
        if len(classes) > _MOST_CLASSES:  # too many to say how each looks
            classes, counts, groups, labels = np.zeros(1, np.int64), np.array([len(joint)]), groups * 0, None
        means = np.stack([joint[groups == one].mean(0) for one in classes])
        centred = joint - means[np.searchsorted(classes, groups)]
        spread = np.sqrt((centred**2).mean(0))
        scaled = centred / np.where(spread > 0, spread, 1.0)
        together = (scaled.T @ scaled / len(joint))[np.triu_indices(joint.shape[1])]
        columns = _joined([rows.columns[mask] for rows, mask in parts])
        known: dict[str, Any] = {
            "kind": first.kind,
            "width": first.width,
            "n": len(joint),
            "products": products.shape[1],
            "targets": 0 if values is None else values.shape[1],
            "classes": classes.tolist() if labels is not None else None,
            "counts": counts.tolist(),
            "means": _packed(means, "<f4"),
            "spread": _packed(spread, "<f4"),
            "together": _packed(together, "<f2"),
        }
        if labels is not None and len(classes) > 1:
            known["near"] = _near(features, groups)
        if columns is not None and columns.shape[1]:
            known |= _columns_of(columns, labels, is_number=first.kind == "numbers")
        if first.kind == "tokens":
            known["words"] = _tokens_of(parts)
            if (again := _repeated_words(parts)) is not None:
                known["again"] = again
        return json.dumps(known, separators=(",", ":"))


def products_of(features: Array) -> Array:
    """Squares and products of neighbouring inputs: where classes differ in shape, not in place. None of many inputs."""
    width = features.shape[1]
    if width > _MOST_MULTIPLIED:
        return features[:, :0]
    pairs = [(one, one + apart) for apart in range(width) for one in range(width - apart)][:_MOST_PRODUCTS]
    return np.column_stack([features[:, one] * features[:, other] for one, other in pairs])


def _near(features: Array, labels: Array) -> list[float]:
    """How often a sample's nearest neighbours have its label, and how often they would by chance."""
    scaled = features[:_KEPT_ROWS] / np.maximum(features.std(0), 1e-9)
    mine = labels[:_KEPT_ROWS]
    squares = (scaled**2).sum(1)
    apart = squares[:, None] + squares[None] - 2 * scaled @ scaled.T
    np.fill_diagonal(apart, np.inf)
    count = min(_NEAREST, len(mine) - 1)
    nearest = np.argpartition(apart, count - 1, axis=1)[:, :count]
    shares = np.unique(mine, return_counts=True)[1] / len(mine)
    return [round(float((mine[nearest] == mine[:, None]).mean()), 4), round(float((shares**2).sum()), 4)]


def _columns_of(columns: Array, labels: Array | None, *, is_number: bool) -> dict[str, Any]:
    """Scale of the first columns; of each column the two commonest values, and how far one label goes with them."""
    places = np.argsort(columns, axis=0, kind="stable")
    order = np.take_along_axis(columns, places, axis=0)
    begins = np.vstack([np.ones((1, columns.shape[1]), bool), order[1:] != order[:-1]])
    values, shares = np.zeros((2, columns.shape[1]), np.float32), np.zeros((2, columns.shape[1]))
    pure, classes = np.zeros((2, columns.shape[1])), np.unique(() if labels is None else labels, return_inverse=True)[1]
    for column in range(columns.shape[1]):
        starts = np.flatnonzero(begins[:, column])
        lengths = np.diff(np.append(starts, len(order)))
        top = np.argsort(-lengths, kind="stable")[:2]
        values[: len(top), column] = order[starts[top], column]
        shares[: len(top), column] = lengths[top] / len(order)
        for rank, one in enumerate(top if labels is not None else ()):
            if lengths[one] >= _FEWEST_ALIKE:
                alike = places[starts[one] : starts[one] + lengths[one], column]
                pure[rank, column] = np.bincount(classes[alike]).max() / len(alike)
    known = {
        "atoms": _packed(np.where(np.isfinite(values), values, 0), "<f4"),
        "atom_shares": _packed(np.round(shares * 255), "<u1"),
    }
    if labels is not None:
        known["atom_labels"] = _packed(np.round(pure * 255), "<u1")
    if is_number:
        some = columns[:, :: -(-columns.shape[1] // _SCALED)].astype(np.float64)
        some = np.where(np.isfinite(some), some, 0.0)
        middle = np.median(some, axis=0)
        known["middle"] = _packed(middle, "<f4")
        known["low"], known["high"] = _packed(some.min(0), "<f4"), _packed(some.max(0), "<f4")
        known["deviation"] = _packed(np.abs(some - middle).mean(0), "<f4")
        known["zeros"] = _packed(np.round((some == 0).mean(0) * 255), "<u1")
    return known


def _tokens_of(parts: list[tuple[BatchRows, Array]]) -> list[list[float]]:
    """The commonest tokens and the share of samples that each is in."""
    seen: Counter[int] = Counter()
    total = 0
    for rows, mask in parts:
        if rows.tokens is None:
            continue
        samples, tokens = rows.tokens
        is_kept = mask[samples]
        pairs = np.unique(np.stack([samples[is_kept], tokens[is_kept]]), axis=1)
        seen.update(pairs[1].tolist())
        total += int(mask.sum())
    return [[token, round(count / max(total, 1), 3)] for token, count in seen.most_common(_MOST_TOKENS)]


def _repeated_words(parts: list[tuple[BatchRows, Array]]) -> list[float] | None:
    """Which share of a sample's tokens repeats others of it, on average, and the standard deviation.

    Without the commonest token, which may fill up short texts. None where hardly any sample has enough tokens.
    """
    shares: list[Array] = []
    for rows, mask in parts:
        if rows.tokens is None:
            continue
        samples, tokens = rows.tokens
        values, often = np.unique(tokens, return_counts=True)
        is_kept = mask[samples] & (tokens != values[often.argmax()]) & (tokens != 0)
        samples, tokens = samples[is_kept], tokens[is_kept]
        total = np.bincount(samples, minlength=len(mask))
        pairs = np.unique(np.stack([samples, tokens]), axis=1)[0] if len(samples) else samples
        is_long = total >= _FEWEST_WORDS
        shares.append(1 - np.bincount(pairs, minlength=len(mask))[is_long] / total[is_long])
    found = np.concatenate(shares) if shares else np.zeros(0)
    return [round(float(found.mean()), 4), round(float(found.std()), 4)] if len(found) >= _FEWEST_ALIKE else None


def _joined(parts: list[Array | None]) -> Array | None:
    known = [one for one in parts if one is not None]
    if len(known) != len(parts) or len({one.shape[1:] for one in known}) != 1:
        return None
    return np.concatenate(known)


def _packed(values: Array, kind: str) -> str:
    with np.errstate(over="ignore"):
        return base64.b64encode(zlib.compress(np.ascontiguousarray(values).astype(kind).tobytes(), 6)).decode()
