"""Which elements of an update are read, and how they are projected to a few hundred numbers.

Small layers are read whole. Of a large layer, blocks of 1,024 neighbouring
elements are read, spread evenly, the same ones for every client and round: a
quarter of a memory page is the cheapest thing to read beside everything, and
reading everything costs as much as averaging it. The sketch of a layer adds
its elements up, with seeded random signs, into a number of buckets (a count
sketch). It is linear, so sketches of sums are sums of sketches, and inner
products of sketches are unbiased estimates of inner products of updates: for
m buckets the standard error of a cosine is at most 1/sqrt(m). A layer with
no more elements than buckets is its own sketch, and exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.structure import State, Structure, copy_flat

Vector = npt.NDArray[Any]
BLOCK = 1024
WHOLE_UP_TO = 60_000
LARGE_SHARE = 32  # of a larger layer one block in so many is read
FEWEST_BLOCKS = 16
BUCKETS = 512
FEWEST_BUCKETS = 31
SIGNS = 512
DIRECTIONS = 64  # of the inputs, in which the change of a first layer is looked at


@dataclass(frozen=True, slots=True)
class LayerRange:
    """A layer's place in the row of elements that are read, and in the sketch."""

    start: int
    stop: int
    blocks: Vector | None
    buckets: int
    sketch_start: int

    @property
    def read(self) -> int:
        return self.stop - self.start

    @property
    def is_exact(self) -> bool:
        return self.buckets == self.read and self.blocks is None


class SketchPlan:
    """How updates of one structure are read; the same seed gives the same plan."""

    def __init__(self, structure: Structure, seed: int = 0, *, read_everything: bool = False) -> None:
        chance = np.random.default_rng([seed, 0x57E7])
        self.structure = structure
        self.output = _output_layer(structure)
        self.has_output_bias = self.output is not None and _has_bias(structure, self.output)
        self.input = _input_layer(structure)
        inputs = 0 if self.input is None else structure.layers[self.input].shape[1]
        self.input_view = _input_view(inputs, seed)
        self.input_upper = np.flatnonzero(np.triu(np.ones((min(inputs, DIRECTIONS),) * 2)).ravel())
        total = sum(min(layer.size, WHOLE_UP_TO) for layer in structure.layers[: structure.weights])
        parts: list[LayerRange] = []
        at = sketch_at = 0
        for number, layer in enumerate(structure.layers):
            is_whole = read_everything or layer.size <= WHOLE_UP_TO or number == self.output
            blocks = None if is_whole else _blocks_of(layer.size, chance)
            read = layer.size if blocks is None else len(blocks) * BLOCK
            share = min(layer.size, WHOLE_UP_TO) / max(total, 1)
            buckets = _bucket_count(read, share, layer.shape[-1] if layer.shape else 1)
            parts.append(LayerRange(at, at + read, blocks, buckets, sketch_at))
            at, sketch_at = at + read, sketch_at + buckets
        self.parts = tuple(parts)
        self.read = at
        weights = parts[: structure.weights]
        self.weight_stop = weights[-1].stop
        self.weight_buckets = weights[-1].sketch_start + weights[-1].buckets
        self.buckets = sketch_at
        sizes = [layer.size for layer in structure.layers]
        self.coverage = np.array([part.read / size if size else 1.0 for part, size in zip(parts, sizes, strict=True)])
        read_weights = sum(part.read for part in weights)
        self.all_sizes = np.array([*sizes, sum(sizes[: structure.weights])], float)  # the last: all weights together
        self.all_coverage = np.append(self.coverage, read_weights / max(float(self.all_sizes[-1]), 1.0))
        self.reads_everything = bool((self.coverage == 1).all())
        zeros = np.zeros(len(parts) + 1)
        zeros.flags.writeable = False
        self.nothing_odd = zeros, zeros  # of an update that is finite: NaN and infinite elements by layer
        self.spare_memory: list[Any] = []  # see `UpdateBuffer`
        self.is_plain = all(part.blocks is None and part.read for part in parts)
        self._signs = np.where(chance.random(at) < 0.5, np.float32(-1), np.float32(1))
        self.sign_places = np.sort(chance.choice(self.weight_stop, min(SIGNS, self.weight_stop), replace=False))
        self.sign_member = _membership(self.sign_places, [(part.start, part.stop) for part in parts], self.weight_stop)
        self.cosine_errors = np.array([0.0 if part.is_exact else 1 / math.sqrt(part.buckets) for part in parts])
        self._slices = [slice(part.start, part.stop) for part in parts]
        times = [0 if part.buckets == part.read else part.read // part.buckets for part in parts]
        self._sums = [(one, count, one.start + count * one.buckets) for one, count in zip(parts, times, strict=True)]
        self._ones = np.ones(max(times), np.float32)
        self._filled = [number for number, part in enumerate(parts) if part.buckets]
        self._firsts = [parts[number].sketch_start for number in self._filled]

    def gather(self, state: State, client: str, row: Vector) -> tuple[int, ...]:
        """Put the elements that are read into a row; return the numbers of layers that the update does not have.

        What stands in the row for those layers is 0.
        """
        values, missing = self.structure.values_of(state, client), []
        with np.errstate(over="ignore", invalid="ignore"):
            for number, (part, value) in enumerate(zip(self.parts, values, strict=True)):
                if value is None:
                    row[part.start : part.stop] = 0
                    missing.append(number)
                else:
                    copy_flat(value, part.blocks, BLOCK, row[part.start : part.stop])
        return tuple(missing)

    def sketch(self, rows: Vector) -> Vector:
        """The projections of rows of elements, one row each; buckets of weights come first."""
        sketches = np.empty((len(rows), self.buckets), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # sums may be too large for single precision
            for part, times, whole in self._sums:
                target = sketches[:, part.sketch_start : part.sketch_start + part.buckets]
                if not times:
                    target[:] = rows[:, part.start : part.stop]
                    continue
                signed = rows[:, part.start : part.stop] * self._signs[part.start : part.stop]
                table = signed[:, : whole - part.start].reshape(len(rows), times, part.buckets)
                np.matmul(self._ones[:times], table, out=target)
                target[:, : part.stop - whole] += signed[:, whole - part.start :]
        return sketches

    def norms(self, rows: Vector) -> Vector:
        """The 2-norm of every layer, a row each; of a layer read in part an estimate from that part."""
        sums = np.empty((len(rows), len(self.parts)))
        with np.errstate(over="ignore"):
            for number, part in enumerate(self._slices):
                mine = rows[:, part]
                np.vecdot(mine, mine, out=sums[:, number])
        if not math.isfinite(sums.sum()):
            for place, number in np.argwhere(np.isinf(sums)).tolist():  # too large for single precision
                sums[place, number] = np.square(rows[place, self._slices[number]], dtype=np.float64).sum()
        sums /= self.coverage
        return np.sqrt(sums, out=sums)

    def norms_of_row(self, row: Vector) -> Vector:
        """The norms of a global model's layers, and of all weights together; not finite where an element is not."""
        norms = self.norms(row[None])[0]
        return np.append(norms, math.sqrt(float(np.square(norms[: self.structure.weights]).sum())))

    def finite_norm(self, row: Vector) -> float:
        """The norm of all weights of a global model, over its finite elements."""
        norm = float(self.norms_of_row(row)[-1])
        if math.isfinite(norm):
            return norm
        return float(self.norms_of_row(np.where(np.isfinite(row), row, np.float32(0)))[-1])

    def by_layer(self, products: Vector) -> Vector:
        """Sums over the buckets of each layer and, last, of all weights together."""
        sums = np.zeros((len(products), len(self.parts) + 1))
        sums[:, self._filled] = np.add.reduceat(products, self._firsts, axis=1)
        sums[:, -1] = sums[:, : self.structure.weights].sum(1)
        return sums


def _membership(places: Vector, stretches: list[tuple[int, int]], weight_stop: int) -> Vector:
    """A column per layer, and one for all weights: 1 for places inside, so that sums per layer are products with it."""
    columns = [(places >= start) & (places < stop) for start, stop in stretches]
    return np.stack([*columns, places < weight_stop], axis=1).astype(np.float64)


def square_sum(values: Vector) -> float:
    """In double precision where single precision is not enough."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.dot(values, values))
        if math.isinf(total):
            total = float(np.square(values, dtype=np.float64).sum())
    return total


def _blocks_of(size: int, chance: np.random.Generator) -> Vector:
    """Blocks of a large layer, one drawn from each stretch of equal length."""
    available = size // BLOCK
    count = max(FEWEST_BLOCKS, available // LARGE_SHARE)
    edges = np.linspace(0, available, count + 1)
    return np.minimum((edges[:-1] + chance.random(count) * np.diff(edges)).astype(np.int64), available - 1)


def _bucket_count(read: int, share: float, width: int) -> int:
    """Buckets for a layer by its share of the model, odd and coprime to its width, so that columns spread."""
    wanted = max(FEWEST_BUCKETS, round(BUCKETS * share)) | 1
    if read <= wanted:
        return read
    while math.gcd(wanted, width) > 1 and wanted > 3:
        wanted -= 2
    return wanted


def _output_layer(structure: Structure) -> int | None:
    """The last matrix of weights, whose rows are the classes."""
    for number in reversed(range(structure.weights)):
        layer = structure.layers[number]
        is_small = len(layer.shape) == 2 and 2 <= layer.shape[0] <= 256 and layer.size <= WHOLE_UP_TO * 8
        if is_small and layer.name not in structure.tables:
            return number
    return None


def _has_bias(structure: Structure, output: int) -> bool:
    """Whether the layer after the output layer's matrix is its bias."""
    layers, after = structure.layers, output + 1
    return after < structure.weights and layers[after].shape == layers[output].shape[:1]


def _input_layer(structure: Structure) -> int | None:
    """The first matrix of weights, whose columns are the inputs; None if it is too large to be read whole, or an
    embedding, whose rows are."""
    for number in range(structure.weights):
        layer = structure.layers[number]
        if len(layer.shape) > 1:
            is_small = len(layer.shape) == 2 and layer.shape[1] > 1 and layer.size <= WHOLE_UP_TO
            return number if is_small and layer.name not in structure.tables else None
    return None


def _input_view(inputs: int, seed: int) -> Vector | None:
    """A seeded projection of that many inputs to `DIRECTIONS` of them; None where there are no more than that."""
    if inputs <= DIRECTIONS:
        return None
    chance = np.random.default_rng([seed, 0x1417])
    return (chance.standard_normal((inputs, DIRECTIONS)) / math.sqrt(DIRECTIONS)).astype(np.float32)
