"""Tensors as safetensors files: written from whatever holds them, read back as bytes that execute nothing.

A file is eight bytes of header length, a JSON header, and the raw tensors.
What is read is checked against the file's size before anything is allocated.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.errors import CaptureError

Buffer = npt.NDArray[np.uint8]
# By the names of torch and NumPy.
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
_NAMES = {short: name for name, short in DTYPES.items()}
_LONGEST_HEADER = 16 << 20
_MOST_TENSORS = 100_000
_MOST_SIDES = 64


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """One tensor of a file: its type by safetensors' name, its shape, and where its bytes lie."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A whole file but for the tensors' values: the same for every state of a model."""

    head: bytes
    entries: tuple[TensorSlot, ...]
    total_bytes: int

    def file_of(self, values: Sequence[Any]) -> Buffer:
        """The file that holds these values, in the order of `entries`; every byte is copied."""
        file = np.empty(self.total_bytes, np.uint8)
        file[: len(self.head)] = np.frombuffer(self.head, np.uint8)
        for entry, value in zip(self.entries, values, strict=True):
            if entry.end > entry.start:
                file[entry.start : entry.end] = bytes_in(value)
        return file


def dtype_of(value: Any) -> str:
    """The type of a tensor or array by safetensors' name; CaptureError for one that has none."""
    words = str(value.dtype)
    known = DTYPES.get(words.removeprefix("torch."))
    if known is None or getattr(value, "is_sparse", False) or getattr(value, "is_quantized", False):
        raise CaptureError(f"a tensor of type {words} cannot be captured", hint="dense numbers and booleans can")
    return known


def shape_of_file(named: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> Shape:
    """The file that values like these make."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    placed: list[tuple[str, str, tuple[int, ...], int, int]] = []
    for name, value in named.items():
        dtype, sides = dtype_of(value), tuple(int(side) for side in value.shape)
        end = start + math.prod(sides) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(sides), "data_offsets": [start, end]}
        placed.append((name, dtype, sides, start, end))
        start = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return Shape(
        head, tuple(TensorSlot(n, d, s, a + len(head), b + len(head)) for n, d, s, a, b in placed), start + len(head)
    )


def bytes_in(value: Any) -> Buffer:
    """The bytes of a tensor or array in a row on the host; looked at where that can be, else copied."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.dtype is torch.float32 and value.is_cpu and value.is_contiguous() and not value.is_neg():  # mostly
            return value.detach().numpy().reshape(-1).view(np.uint8)  # type: ignore[no-any-return]
        flat = value.detach().resolve_neg().cpu().contiguous().reshape(-1)
        if flat.numel() == 1:  # whatever its stride, it counts as contiguous
            flat = flat.clone(memory_format=torch.contiguous_format)
        return flat.view(torch.uint8).numpy()  # type: ignore[no-any-return]
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def parse(file: Buffer) -> tuple[dict[str, TensorSlot], dict[str, str]]:
    """The tensors of a file and its metadata; CaptureError unless every one lies inside the file."""
    try:
        return _parse(file)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CaptureError(f"not a safetensors file: {error}") from None


def _parse(file: Buffer) -> tuple[dict[str, TensorSlot], dict[str, str]]:
    if len(file) < 8:
        raise ValueError(f"{len(file)} bytes are too few")
    length = int.from_bytes(file[:8].tobytes(), "little")
    if length > min(_LONGEST_HEADER, len(file) - 8):
        raise ValueError(f"a header of {length:,} bytes in a file of {len(file):,}")
    header = json.loads(file[8 : 8 + length].tobytes())
    if not isinstance(header, dict) or len(header) > _MOST_TENSORS:
        raise ValueError("the header does not list tensors")
    metadata = header.pop("__metadata__", {})
    entries = {name: _entry(name, fields, 8 + length, len(file)) for name, fields in header.items()}
    return entries, {str(key): str(value) for key, value in dict(metadata).items()}


def _entry(name: str, fields: Any, head: int, size: int) -> TensorSlot:
    dtype, shape = fields["dtype"], fields["shape"]
    start, end = fields["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, start, end)) or len(shape) > _MOST_SIDES:
        raise ValueError(f"tensor {name[:80]!r} has an impossible shape")
    if math.prod(shape) * ITEM_BYTES[dtype] != end - start or head + end > size:
        raise ValueError(f"tensor {name[:80]!r} does not lie inside the file")
    return TensorSlot(name, dtype, tuple(shape), head + start, head + end)


def tensor_in(file: Buffer, entry: TensorSlot) -> Any:
    """A tensor of a file, as a copy of its own."""
    import torch

    dtype = getattr(torch, _NAMES[entry.dtype])
    if entry.start == entry.end:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.from_numpy(file[entry.start : entry.end].copy()).view(dtype).reshape(entry.shape)


def array_in(file: Buffer, entry: TensorSlot) -> npt.NDArray[Any]:
    """An array of a file, as a copy of its own; CaptureError for types that NumPy lacks."""
    if entry.dtype in ("BF16", "F8_E4M3", "F8_E5M2"):
        raise CaptureError(f"tensor {entry.name[:80]!r} has a type that NumPy lacks: {entry.dtype}")
    return file[entry.start : entry.end].copy().view(np.dtype(_NAMES[entry.dtype])).reshape(entry.shape)
