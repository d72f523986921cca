"""Lossless compression of safetensors files against others of the same shape.

Floats that training moves a little share sign, exponent and the first bits of
their mantissa with what they were. So a float32 tensor is predicted from one or two
others, `first + weight * (first - second)`; what is stored is the difference of the two numbers' places in the order
of all floats, byte by byte of equal rank, each plane compressed with zstd, or as it is where that does not help.
Prediction is IEEE arithmetic of single operations: the same bits on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.errors import CaptureError
from stethos.replay.tensorfile import Buffer, TensorSlot, parse, shape_of_file

SUFFIX = ".packed"
MOST_BYTES = 64 << 30
FREE_BYTES, MOST_TIMES = 256 << 20, 1000  # to which size, and else how many times its own, a file may unfold
_LEVEL = 1
_FORMAT = "stethos-packed-1"


def pack(file: Buffer, bases: Sequence[tuple[str, Buffer]] = ()) -> bytes | None:
    """The file compressed, predicted from those `bases` that have the same header; None if that makes it no smaller."""
    entries, _ = parse(file)
    head = _head_bytes(file)
    near = [(name, base) for name, base in bases if len(base) == len(file) and np.array_equal(base[:head], file[:head])]
    blocks: list[bytes] = [_squeeze(file[:head])[1]]
    plan: list[list[Any]] = []
    for entry in entries.values():
        weight = _weight(file, entry, [base for _, base in near])
        values = _difference(file, entry, [base for _, base in near], weight)
        planes = []
        for plane in values:
            is_squeezed, block = _squeeze(plane)
            planes.append(len(block) if is_squeezed else -len(block))
            blocks.append(block)
        plan.append([weight, *planes])
    payload = np.frombuffer(b"".join(blocks), np.uint8)
    metadata = {
        "format": _FORMAT,
        "bases": json.dumps([name for name, _ in near]),
        "bytes": str(len(file)),
        "head": json.dumps([head, len(blocks[0])]),
        "plan": json.dumps(plan, separators=(",", ":")),
    }
    packed = shape_of_file({"payload": payload}, metadata).file_of([payload]).tobytes()
    return packed if len(packed) < len(file) else None


def bases_of(file: Buffer) -> tuple[str, ...]:
    """The names of the files that a packed one was predicted from."""
    _, metadata = _opened(file)
    try:
        names = json.loads(metadata["bases"])
        if not isinstance(names, list) or len(names) > 2 or not all(isinstance(name, str) for name in names):
            raise ValueError
    except (ValueError, KeyError):
        raise CaptureError("a packed file names its bases in an unknown way") from None
    return tuple(names)


def unpack(file: Buffer, bases: Sequence[Buffer], most_bytes: int = MOST_BYTES) -> Buffer:
    """The file that was packed; CaptureError if that cannot be. Allocates no more than `most_bytes`."""
    entry, metadata = _opened(file)
    try:
        return _unpack(file[entry.start : entry.end], metadata, bases, most_bytes)
    except MemoryError:
        raise CaptureError("a packed file needs more memory than there is") from None
    except (ValueError, TypeError, KeyError, IndexError, OSError, RecursionError, OverflowError) as error:
        raise CaptureError(f"a packed file cannot be read: {error}") from None


def _unpack(payload: Buffer, metadata: dict[str, str], bases: Sequence[Buffer], most_bytes: int) -> Buffer:
    total = int(metadata["bytes"])
    head, squeezed = json.loads(metadata["head"])
    if not 0 < head <= total <= most_bytes:
        raise ValueError(f"{total:,} bytes with a header of {head:,}")
    if any(len(base) != total for base in bases):
        raise ValueError("its bases have another size")
    if not bases and total > max(FREE_BYTES, MOST_TIMES * len(payload)):
        raise ValueError(f"{len(payload):,} bytes that unfold to {total:,}")
    file = np.zeros(total, np.uint8)
    file[:head] = _expand(payload[:squeezed], head, squeezed != head)
    entries, _ = parse(file)
    place = squeezed
    for entry, part in zip(entries.values(), json.loads(metadata["plan"]), strict=True):
        width, size = _width(entry), entry.end - entry.start
        planes = np.empty((width, size // width), np.uint8)
        weight, *lengths = part
        if len(lengths) != width:
            raise ValueError(f"{len(lengths)} planes for {width} bytes")
        for row, length in enumerate(lengths):  # negative: as it is, not compressed
            planes[row] = _expand(payload[place : place + abs(length)], size // width, length > 0)
            place += abs(length)
        file[entry.start : entry.end] = _restored(planes, entry, bases, float(weight))
    return file


def _opened(file: Buffer) -> tuple[TensorSlot, dict[str, str]]:
    entries, metadata = parse(file)
    if metadata.get("format") != _FORMAT or set(entries) != {"payload"}:
        raise CaptureError("not a packed file", hint="it was written by another version, or is damaged")
    return entries["payload"], metadata


def _head_bytes(file: Buffer) -> int:
    return 8 + int.from_bytes(file[:8].tobytes(), "little")


def _width(entry: TensorSlot) -> int:
    """Bytes per element, of which each makes a plane; 1 for tensors without elements."""
    size = entry.end - entry.start
    count = int(np.prod(entry.shape, dtype=np.int64))
    return size // count if count else 1


# Planes ---------------------------------------------------------------------------------------------


def _zstd() -> Any:
    import pyarrow as pa

    return pa.Codec("zstd", compression_level=_LEVEL)


def _squeeze(plane: Buffer) -> tuple[bool, bytes]:
    raw = plane.tobytes()
    small = bytes(_zstd().compress(raw)) if raw else raw
    return (True, small) if len(small) < len(raw) else (False, raw)


def _expand(block: Buffer, size: int, is_squeezed: bool) -> Buffer:
    raw = block.tobytes()
    if is_squeezed:
        raw = bytes(_zstd().decompress(raw, decompressed_size=size))
    if len(raw) != size:
        raise ValueError(f"{len(raw)} bytes instead of {size}")
    return np.frombuffer(raw, np.uint8)


# Prediction -----------------------------------------------------------------------------------------


def _weight(file: Buffer, entry: TensorSlot, bases: Sequence[Buffer]) -> float:
    """By least squares, rounded to a float32; 0 where there is nothing to fit."""
    if entry.dtype != "F32" or len(bases) < 2:
        return 0.0
    with np.errstate(all="ignore"):
        wanted = _floats(file, entry).astype(np.float64) - _floats(bases[0], entry)
        way = _floats(bases[0], entry).astype(np.float64) - _floats(bases[1], entry)
        known = np.isfinite(wanted) & np.isfinite(way)
        energy = float(np.square(way[known]).sum())
        weight = float(np.float32((wanted[known] * way[known]).sum() / energy)) if energy > 0 else 0.0
    return weight if np.isfinite(weight) else 0.0


def _difference(file: Buffer, entry: TensorSlot, bases: Sequence[Buffer], weight: float) -> Buffer:
    width = _width(entry)
    if entry.dtype == "F32" and bases:
        steps = _ordered(_floats(file, entry)) - _predicted(entry, bases, weight)  # wraps around, and back
        raw = ((steps << 1) ^ (steps >> 31)).view(np.uint8)
    elif bases:
        raw = file[entry.start : entry.end] ^ bases[0][entry.start : entry.end]
    else:
        raw = file[entry.start : entry.end]
    return np.ascontiguousarray(raw.reshape(-1, width).T)


def _restored(planes: Buffer, entry: TensorSlot, bases: Sequence[Buffer], weight: float) -> Buffer:
    raw = np.ascontiguousarray(planes.T).reshape(-1)
    if entry.dtype == "F32" and bases:
        folded = raw.view(np.uint32)
        steps = (folded >> 1).astype(np.int32) ^ -(folded & 1).astype(np.int32)
        return _unordered(steps + _predicted(entry, bases, weight)).view(np.uint8)
    return raw ^ bases[0][entry.start : entry.end] if bases else raw


def _floats(file: Buffer, entry: TensorSlot) -> npt.NDArray[np.float32]:
    return file[entry.start : entry.end].copy().view(np.float32)


def _predicted(entry: TensorSlot, bases: Sequence[Buffer], weight: float) -> npt.NDArray[np.int32]:
    """Places in the order of floats; 0 where the prediction is no number, so that no NaN's bits matter."""
    first = _floats(bases[0], entry)
    with np.errstate(all="ignore"):
        if len(bases) > 1 and weight:
            way = first - _floats(bases[1], entry)
            way *= np.float32(weight)
            first = first + way
        return np.where(np.isfinite(first), _ordered(first), np.int32(0))


def _ordered(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """Integers in the order of the floats, next to each other where these are."""
    bits = values.view(np.int32)
    return np.where(bits < 0, bits ^ np.int32(2**31 - 1), bits)


def _unordered(places: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    return np.where(places < 0, places ^ np.int32(2**31 - 1), places).view(np.float32)
