"""What would become of an update if it were sent smaller: bytes and relative error, layer by layer.

CompressedLayer on real updates when `federation(measure_compression=True)` asks for it: of each round one update, and
none while more than a fiftieth of the time has gone into measuring. Nothing is changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.structure import State, Structure, flat_of
from stethos.observe.session import Session
from stethos.schema import COMPRESSION, NULL_F64, NULL_I32

Vector = npt.NDArray[Any]
TOP_SHARE = 0.01
RANK = 4
_EXACT_SIDE = 512  # up to this, ranks are exact; beyond, as found by a few steps of subspace iteration
_LARGEST_MATRIX = 16_000_000
_PASSES = 4
_TIME_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class CompressedLayer:
    """One layer sent one way; `lost` is the squared norm of what is lost, None where the way is of no use there."""

    bytes: int
    lost: float


def to_fp16(change: Vector, shape: tuple[int, ...]) -> CompressedLayer:
    """Half precision."""
    with np.errstate(over="ignore"):
        return CompressedLayer(2 * change.size, _squared(change - change.astype(np.float16).astype(change.dtype)))


def to_int8(change: Vector, shape: tuple[int, ...]) -> CompressedLayer:
    """One byte per element and one scale per layer."""
    scale = float(np.abs(change).max(initial=0.0)) / 127
    if scale == 0:
        return CompressedLayer(change.size + 4, 0.0)
    return CompressedLayer(change.size + 4, _squared(change - np.round(change / scale) * scale))


def to_top(change: Vector, shape: tuple[int, ...]) -> CompressedLayer:
    """The largest hundredth of the elements, each with its place."""
    count = max(1, math.ceil(TOP_SHARE * change.size))
    if count >= change.size:
        return CompressedLayer(8 * change.size, 0.0)
    rest = np.partition(np.abs(change), change.size - count)[: change.size - count]
    return CompressedLayer(8 * count, _squared(rest))


def to_low_rank(change: Vector, shape: tuple[int, ...]) -> CompressedLayer:
    """Two thin matrices of rank 4; a layer for which that is not smaller, or too large to measure, goes as it is."""
    rows = shape[0] if shape else 1
    columns = change.size // max(1, rows)
    if RANK * (rows + columns) >= change.size or change.size > _LARGEST_MATRIX:
        return CompressedLayer(change.size * change.itemsize, 0.0)
    kept = _largest_squares(change.reshape(rows, columns).astype(np.float64), RANK)
    return CompressedLayer(4 * RANK * (rows + columns), max(0.0, _squared(change) - kept))


METHODS: dict[str, Callable[[Vector, tuple[int, ...]], CompressedLayer]] = {
    "fp16": to_fp16,
    "int8": to_int8,
    "top-1%": to_top,
    "rank-4": to_low_rank,
}


class Compressor:
    """Measures some updates of a federation and writes rows of `compression`."""

    def __init__(self, federation: str) -> None:
        self._federation = federation
        self._base: list[Vector | None] | None = None
        self._round = -1
        self._arrivals = 0
        self._last_arrivals = 1
        self._began = time.monotonic()
        self._spent_s = 0.0

    def begin(self, number: int, state: State | None, structure: Structure | None) -> None:
        """A round begins with this global model; a copy is kept, as a program may train in the very same tensors."""
        self._round, self._last_arrivals, self._arrivals = number, max(1, self._arrivals), 0
        self._base = None
        if state is not None and structure is not None:
            self._base = [_copied(value) for value in structure.values_of(state, "the global model")]

    def measure(self, session: Session, structure: Structure, client: str, state: State, *, is_delta: bool) -> None:
        """An update came in: measure it, if it is this one's turn and there is time."""
        turn, self._arrivals = self._arrivals, self._arrivals + 1
        if turn != self._round % self._last_arrivals or (self._base is None and not is_delta):
            return
        began = time.monotonic()
        if self._spent_s > _TIME_SHARE * (began - self._began):
            return
        base: list[Vector | None] = [None] * len(structure.layers) if is_delta or self._base is None else self._base
        values = structure.values_of(state, client)
        layers = [
            (layer.name, layer.shape, _change(value, start))
            for layer, value, start in zip(structure.layers, values, base, strict=True)
            if value is not None and layer.kind == "weight"
        ]
        self._write(session, client, layers)
        self._spent_s += time.monotonic() - began

    def _write(self, session: Session, client: str, layers: list[tuple[str, tuple[int, ...], Vector]]) -> None:
        names: list[list[int]] = []
        numbers: list[list[float]] = []
        federation = session.name_id(self._federation)
        for method, send in METHODS.items():
            known = session.name_id(method)
            whole = [0.0, 0.0, 0.0, 0.0]
            for name, shape, change in layers:
                norm = _squared(change)
                done = send(change, shape)
                names.append([federation, session.name_id(name), known])
                numbers.append([change.nbytes, done.bytes, _relative(done.lost, norm)])
                whole = [
                    old + new for old, new in zip(whole, (change.nbytes, done.bytes, done.lost, norm), strict=True)
                ]
            names.append([federation, NULL_I32, known])
            numbers.append([*whole[:2], _relative(whole[2], whole[3])])
        session.put_frame(
            COMPRESSION.number,
            np.array(names, "<i4").T.tobytes(),
            np.array(numbers, "<f8").T.tobytes(),
            rows=len(names),
            whose=(session.name_id(client), self._round),
        )


def _copied(value: Any) -> Vector | None:
    return None if value is None else np.array(flat_of(value))


def _change(value: Any, start: Vector | None) -> Vector:
    """The finite part of what changed."""
    flat = flat_of(value)
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.array(flat) if start is None else flat - start
    return np.asarray(np.where(np.isfinite(change), change, change.dtype.type(0)))


def _squared(values: Vector) -> float:
    return (
        float(np.dot(values, values))
        if values.dtype == np.float64
        else float(np.square(values, dtype=np.float64).sum())
    )


def _relative(lost: float, norm: float) -> float:
    """The relative error; NULL for an update that changes nothing."""
    return math.sqrt(lost / norm) if norm > 0 else NULL_F64


def _largest_squares(matrix: Vector, rank: int) -> float:
    """The sum of the largest squared singular values."""
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    if len(matrix) <= _EXACT_SIDE:
        return float(np.linalg.eigvalsh(matrix @ matrix.T)[-rank:].sum())
    basis = np.random.default_rng(0).standard_normal((len(matrix), rank + 4))  # its own generator: no draw of yours
    for _ in range(_PASSES):
        basis, _triangle = np.linalg.qr(matrix @ (matrix.T @ basis))
    small = basis.T @ matrix
    return float(np.linalg.eigvalsh(small @ small.T)[-rank:].sum())
