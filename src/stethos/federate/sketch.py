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
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.structure import State, Structure, copy_flat, copy_plain

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
class Part:
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


class Plan:
    """How updates of one structure are read; the same seed gives the same plan."""

    def __init__(self, structure: Structure, seed: int = 0, *, read_everything: bool = False) -> None:
        chance = np.random.default_rng([seed, 0x57E7])
        self.structure = structure
        self.output = _output_layer(structure)
        self.input = _input_layer(structure)
        self.input_view = None if self.input is None else _input_view(structure.layers[self.input].shape[1], seed)
        total = sum(min(layer.size, WHOLE_UP_TO) for layer in structure.layers[: structure.weights])
        parts: list[Part] = []
        at = sketch_at = 0
        for number, layer in enumerate(structure.layers):
            is_whole = read_everything or layer.size <= WHOLE_UP_TO or number == self.output
            blocks = None if is_whole else _blocks_of(layer.size, chance)
            read = layer.size if blocks is None else len(blocks) * BLOCK
            share = min(layer.size, WHOLE_UP_TO) / max(total, 1)
            buckets = _bucket_count(read, share, layer.shape[-1] if layer.shape else 1)
            parts.append(Part(at, at + read, blocks, buckets, sketch_at))
            at, sketch_at = at + read, sketch_at + buckets
        self.parts = tuple(parts)
        self.read = at
        weights = parts[: structure.weights]
        self.weight_stop = weights[-1].stop
        self.weight_buckets = weights[-1].sketch_start + weights[-1].buckets
        self.buckets = sketch_at
        sizes = [layer.size for layer in structure.layers]
        self.coverage = np.array([part.read / size if size else 1.0 for part, size in zip(parts, sizes, strict=True)])
        self.sizes = np.array(sizes, float)
        self._scratch = _Scratch(at)
        self._starts = np.array([part.start for part in parts])
        self._is_plain = all(part.blocks is None and part.read for part in parts)
        self._signs = np.where(chance.random(at) < 0.5, np.float32(-1), np.float32(1))
        self.sign_places = np.sort(chance.choice(self.weight_stop, min(SIGNS, self.weight_stop), replace=False))
        self.sign_member = _membership(self.sign_places, [(part.start, part.stop) for part in parts], self.weight_stop)
        stretches = [(part.sketch_start, part.sketch_start + part.buckets) for part in parts]
        self.bucket_member = _membership(np.arange(sketch_at), stretches, self.weight_buckets)

    def gather(self, state: State, client: str) -> tuple[Vector, tuple[int, ...]]:
        """The elements that are read, in a row, and the numbers of layers that the update does not have.

        The row is this thread's scratch memory: valid until its next call.
        """
        values = self.structure.values_of(state, client)
        row = self._scratch.row
        if self._is_plain and copy_plain(values, row):
            return row, ()
        missing = []
        with np.errstate(over="ignore", invalid="ignore"):
            for number, (part, value) in enumerate(zip(self.parts, values, strict=True)):
                if value is None:
                    row[part.start : part.stop] = 0
                    missing.append(number)
                else:
                    copy_flat(value, part.blocks, BLOCK, row[part.start : part.stop])
        return row, tuple(missing)

    def sketch(self, row: Vector) -> Vector:
        """The projection of a row of elements; buckets of weights come first."""
        signed = np.multiply(row, self._signs, out=self._scratch.signed)
        sketch = np.empty(self.buckets, np.float32)
        for part in self.parts:
            target = sketch[part.sketch_start : part.sketch_start + part.buckets]
            if part.buckets == part.read:
                target[:] = row[part.start : part.stop]
                continue
            mine = signed[part.start : part.stop]
            rows = len(mine) // part.buckets
            whole = rows * part.buckets
            np.matmul(_ones(rows), mine[:whole].reshape(rows, part.buckets), out=target)
            target[: len(mine) - whole] += mine[whole:]
        return sketch

    def norms(self, row: Vector) -> Vector:
        """The 2-norm of every layer; of a layer read in part an estimate from that part."""
        if self._is_plain and len(row) < WHOLE_UP_TO:
            sums: Vector = np.add.reduceat(np.square(row, dtype=np.float64), self._starts)
        else:
            sums = np.array([square_sum(row[part.start : part.stop]) for part in self.parts])
        norms: Vector = np.sqrt(sums / self.coverage)
        return norms


class _Scratch(threading.local):
    """Two rows per thread, made once: fresh memory for every update would cost more than the arithmetic."""

    def __init__(self, length: int) -> None:
        self.row = np.zeros(length, np.float32)
        self.signed = np.zeros(length, np.float32)


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
        if len(layer.shape) == 2 and 2 <= layer.shape[0] <= 256 and layer.size <= WHOLE_UP_TO * 8:
            return number
    return None


def _input_layer(structure: Structure) -> int | None:
    """The first matrix of weights, whose columns are the inputs; None if it is too large to be read whole."""
    for number in range(structure.weights):
        layer = structure.layers[number]
        if len(layer.shape) > 1:
            return number if len(layer.shape) == 2 and layer.shape[1] > 1 and layer.size <= WHOLE_UP_TO else None
    return None


def _input_view(inputs: int, seed: int) -> Vector | None:
    """A seeded projection of that many inputs to `DIRECTIONS` of them; None where there are no more than that."""
    if inputs <= DIRECTIONS:
        return None
    chance = np.random.default_rng([seed, 0x1417])
    return (chance.standard_normal((inputs, DIRECTIONS)) / math.sqrt(DIRECTIONS)).astype(np.float32)


_ONES = np.ones(4096, np.float32)


def _ones(count: int) -> Vector:
    return _ONES[:count] if count <= len(_ONES) else np.ones(count, np.float32)
