"""A client's data as its sketches tell: how its samples look, class by class."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
_LARGEST_TEXT = 1 << 20
_MOST_JOINED = 128
_LEAST_SAMPLES, _USUAL_SHARE = 8.0, 0.6  # of what the median client has


@dataclass(frozen=True, eq=False)
class Sketch:
    """What `evidence` rows of kind `data` say. `scatter` is the sum of outer products around the class means.

    The last `targets` features are what a regression is to answer. `classes` are None where samples have none.
    """

    number: int  # of the round
    kind: str
    width: int
    n: float
    targets: int
    classes: tuple[int, ...] | None
    counts: Array
    means: Array
    scatter: Array
    atoms: Array | None = None
    atom_shares: Array | None = None
    atom_labels: Array | None = None  # of the samples with that value, the share with the commonest label
    middle: Array | None = None
    deviation: Array | None = None
    zeros: Array | None = None
    tokens: dict[int, float] | None = None
    low: Array | None = None
    high: Array | None = None
    products: int = 0  # of inputs, behind them
    near: tuple[float, float] | None = None  # how often neighbours have the same label, and by chance
    again: tuple[float, float] | None = None  # which share of a sample's tokens repeats others of it; its deviation

    @property
    def inputs(self) -> int:
        """Features without targets and products."""
        return self.features - self.targets - self.products

    @property
    def features(self) -> int:
        return int(self.means.shape[1])

    def can_join(self, other: Sketch) -> bool:
        return self._form == other._form

    @cached_property
    def _form(self) -> tuple[str, int, int, int, bool]:
        return self.kind, self.targets, self.features, self.products, self.classes is None

    @cached_property
    def range(self) -> tuple[float, float] | None:
        """The smallest and the largest of all inputs."""
        return None if self.low is None or self.high is None else (float(self.low.min()), float(self.high.max()))

    @cached_property
    def covariance(self) -> Array:
        """Within classes, shrunk towards its diagonal."""
        size = self.features
        raw = self.scatter / max(self.n - len(self.counts), 1)
        share = size / (size + self.n)
        diagonal = np.diag(raw)
        floor = 1e-3 * float(np.mean(diagonal)) + 1e-9
        return np.asarray((1 - share) * raw + np.diag(share * diagonal + floor))

    def precision(self, size: int) -> Array:
        """The inverse of the covariance of the first so many features; not to be changed."""
        if size not in self._precisions:
            self._precisions[size] = np.asarray(np.linalg.inv(self.covariance[:size, :size]), float)
        return self._precisions[size]

    @cached_property
    def _precisions(self) -> dict[int, Array]:
        return {}


def sketch_in(text: str, number: int) -> Sketch | None:
    """Read a sketch; None where the text is not one."""
    try:
        known = json.loads(text)
        means = _unpacked(known["means"], "<f4")
        counts = np.array(known["counts"], float)
        means = means.reshape(len(counts), -1)
        spread = _unpacked(known["spread"], "<f4")
        together = np.zeros((len(spread), len(spread)))
        together[np.triu_indices(len(spread))] = _unpacked(known["together"], "<f2")
        together = together + np.triu(together, 1).T
        columns = {
            name: _unpacked(known[name], kind) / scale
            for name, kind, scale in (
                ("atoms", "<f4", 1), ("atom_shares", "<u1", 255), ("atom_labels", "<u1", 255),
                ("middle", "<f4", 1), ("deviation", "<f4", 1),
                ("zeros", "<u1", 255), ("low", "<f4", 1), ("high", "<f4", 1),
            )
            if name in known
        }  # fmt: skip
        for name in ("atoms", "atom_shares", "atom_labels"):
            if name in columns:
                columns[name] = columns[name].reshape(2, -1)
        classes = None if known["classes"] is None else tuple(int(one) for one in known["classes"])
        tokens = {int(token): float(share) for token, share in known["words"]} if "words" in known else None
        scatter = together * np.outer(spread, spread) * known["n"]
        if not np.isfinite(scatter).all() or not np.isfinite(means).all():
            return None
        return Sketch(
            number, str(known["kind"]), int(known["width"]), float(known["n"]), int(known["targets"]), classes,
            counts, means, scatter, tokens=tokens, products=int(known.get("products", 0)),
            near=None if (near := known.get("near")) is None else (float(near[0]), float(near[1])),
            again=None if (again := known.get("again")) is None else (float(again[0]), float(again[1])), **columns,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, IndexError, zlib.error):
        return None


def joined(sketches: Sequence[Sketch]) -> Sketch:
    """Several sketches as one. What cannot be added up is that of the one with most samples."""
    return _joined(tuple(sketches))


@lru_cache(maxsize=_MOST_JOINED)  # each client is compared with all others many times
def _joined(sketches: tuple[Sketch, ...]) -> Sketch:
    largest = max(sketches, key=lambda one: one.n)
    parts = [one for one in sketches if one.can_join(largest)]
    if len(parts) == 1:
        return largest
    classes = (
        None if largest.classes is None else tuple(sorted({label for one in parts for label in one.classes or ()}))
    )
    places = {label: place for place, label in enumerate(classes or (0,))}
    at = np.array([places[label] for one in parts for label in one.classes or (0,)])
    sizes, centres = np.concatenate([one.counts for one in parts]), np.concatenate([one.means for one in parts])
    of_class = sizes * (at == np.arange(len(places))[:, None])
    counts = of_class.sum(1)
    means = of_class @ centres / counts[:, None]
    apart = centres - means[at]
    scatter = np.sum([one.scatter for one in parts], axis=0) + (sizes[:, None] * apart).T @ apart
    return Sketch(
        min(one.number for one in parts), largest.kind, largest.width, float(counts.sum()), largest.targets, classes,
        counts, means, scatter, largest.atoms, largest.atom_shares, largest.atom_labels, largest.middle,
        largest.deviation, largest.zeros, largest.tokens, largest.low, largest.high, largest.products, largest.near,
        largest.again,
    )  # fmt: skip


def fewest_samples(clients: Sequence[Sketch | None], most: float) -> float:
    """From how many samples on a client is compared: `most`, or fewer where its federation's clients have few.

    What clients of few samples differ by among themselves is known there; one small site among large ones says little.
    """
    return fewest_of([one.n for one in clients if one is not None], most)


def fewest_of(counts: Sequence[float] | Array, most: float) -> float:
    """The same by how many samples each client has."""
    return max(_LEAST_SAMPLES, min(most, _USUAL_SHARE * float(np.median(counts)))) if len(counts) else most


def _unpacked(text: Any, kind: str) -> Array:
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(base64.b64decode(text), _LARGEST_TEXT)
    return np.frombuffer(raw, kind).astype(np.float64)
