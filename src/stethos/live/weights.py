"""What a file of weights holds, found out without running anything in it.

A safetensors file says so in its header. A file of torch's is a pickle, which may call anything when it is loaded
the usual way; here every class and function it names is replaced by an inert stand-in, so nothing is imported and
nothing is called. Tensors are read from the raw bytes in pieces.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from stethos.errors import RecordingError
from stethos.record.border import open_named

_LARGEST_HEADER = 100 << 20
_LARGEST_PICKLE = 512 << 20
_PIECE = 1 << 22
_MOST_DEPTH = 12
_MOST_VISITS = 1_000_000
_MOST_TIMES = 8  # the size of the file
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
# Bytes per element, and how its bits look if it is a floating-point number: exponent bits, mantissa bits.
_KINDS: dict[str, tuple[int, tuple[int, int] | None]] = {
    "F64": (8, (11, 52)), "F32": (4, (8, 23)), "F16": (2, (5, 10)), "BF16": (2, (8, 7)), "F8_E5M2": (1, (5, 2)),
    "F8_E4M3": (1, None), "I64": (8, None), "I32": (4, None), "I16": (2, None), "I8": (1, None), "U8": (1, None),
    "U16": (2, None), "U32": (4, None), "U64": (8, None), "BOOL": (1, None),
}  # fmt: skip
_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL", "UntypedStorage": "U8", "Float8_e5m2Storage": "F8_E5M2", "Float8_e4m3fnStorage": "F8_E4M3",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file. `nan` and `inf` count elements; None where its kind has none or its bytes are missing."""

    name: str
    kind: str
    shape: tuple[int, ...]
    nan: int | None
    inf: int | None

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """What a file holds: tensors, plain values by their path, and names it wanted to import (never done)."""

    format: str
    keys: tuple[str, ...]
    tensors: tuple[TensorEntry, ...]
    values: dict[str, Any] = field(default_factory=dict)
    imports: tuple[str, ...] = ()

    @property
    def step(self) -> int | None:
        """The step, under the names that people give it."""
        for name in ("step", "global_step", "current_step", "iteration", "iter"):
            value = self.values.get(name)
            if isinstance(value, str) and value.isdigit():
                value = int(value)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None


def read_weights(path: Path) -> WeightsFile:
    """Look into a file; RecordingError if it is none of a kind we know, or damaged."""
    try:
        with open_named(path) as file:
            start = file.read(10)
            file.seek(0)
            if start[:4] == b"PK\x03\x04":
                return _read_zip(file)
            if start[8:9] == b"{":
                return _read_safetensors(file, os.fstat(file.fileno()).st_size)
            if start[:1] == b"\x80":
                return _read_legacy(file)
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, RecursionError, OverflowError,
            MemoryError, pickle.UnpicklingError, zipfile.BadZipFile, NotImplementedError) as error:  # fmt: skip
        raise RecordingError(f"{path} is damaged: {type(error).__name__}: {error}") from None
    raise RecordingError(f"{path} is not a weights file", hint="supported: .safetensors, and torch's .pt and .pth")


# safetensors ------------------------------------------------------------------------------------------------


def _read_safetensors(file: BinaryIO, file_bytes: int) -> WeightsFile:
    size = int.from_bytes(file.read(8), "little")
    if not 2 <= size <= min(_LARGEST_HEADER, file_bytes):
        raise ValueError(f"a header of {size:,} bytes")
    header = json.loads(file.read(size))
    facts = header.pop("__metadata__", {})
    tensors, room = [], _MOST_TIMES * file_bytes
    for name, about in header.items():
        first, last = about["data_offsets"]
        kind, shape = str(about["dtype"]), tuple(map(int, about["shape"]))
        width = _KINDS[kind][0] if kind in _KINDS else None
        if not 0 <= first <= last <= file_bytes - 8 - size:
            raise ValueError(f"{name} lies outside the file")
        room -= last - first
        if room < 0:
            raise ValueError("many tensors in the same place")
        if width is not None and math.prod(shape) * width != last - first:
            raise ValueError(f"{name} has {last - first:,} bytes for shape {shape}")
        file.seek(8 + size + first)
        tensors.append(TensorEntry(str(name), kind, shape, *_odd_elements(_pieces(file, last - first), kind)))
    return WeightsFile("safetensors", tuple(map(str, header)), tuple(tensors), dict(facts))


# torch's zip --------------------------------------------------------------------------------------------------


def _read_zip(file: BinaryIO) -> WeightsFile:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        pickled = next((name for name in names if name.endswith("data.pkl")), None)
        if pickled is None:
            raise ValueError("no data.pkl in it")
        if archive.getinfo(pickled).file_size > _LARGEST_PICKLE:
            raise ValueError("its pickle is too large")
        base = pickled.removesuffix("data.pkl")
        reader = _Inert(io.BytesIO(archive.read(pickled)))
        content = reader.load()

        def odd(tensor: _Tensor) -> tuple[int | None, int | None]:
            name = f"{base}data/{tensor.storage.key}"
            width = _KINDS[tensor.storage.kind][0]
            if name not in names or not tensor.is_contiguous or archive.getinfo(name).compress_type:
                return None, None  # torch packs none
            with archive.open(name) as stored:
                stored.seek(tensor.offset * width)
                return _odd_elements(_pieces(stored, tensor.size * width), tensor.storage.kind)

        return _described("torch", content, reader, odd, file)


def _read_legacy(file: BinaryIO) -> WeightsFile:
    """The format before torch 1.6, and plain pickles: several pickles, then the raw storages."""
    reader = _Inert(file)
    content = reader.load()
    if content != _LEGACY_MAGIC:
        return _described("pickle", content, reader, lambda tensor: (None, None), file)
    _Inert(file).load()
    _Inert(file).load()
    reader = _Inert(file)
    content = reader.load()
    places: dict[str, tuple[int, int]] = {}
    for key in _Inert(file).load():
        count = int.from_bytes(file.read(8), "little")
        width = next((_KINDS[one.kind][0] for one in reader.storages if one.key == str(key)), 1)
        places[str(key)] = (file.tell(), count * width)
        file.seek(count * width, io.SEEK_CUR)

    def odd(tensor: _Tensor) -> tuple[int | None, int | None]:
        if tensor.storage.key not in places or not tensor.is_contiguous:
            return None, None
        width = _KINDS[tensor.storage.kind][0]
        file.seek(places[tensor.storage.key][0] + tensor.offset * width)
        return _odd_elements(_pieces(file, tensor.size * width), tensor.storage.kind)

    return _described("torch (before 1.6)", content, reader, odd, file)


@dataclass(frozen=True, slots=True)
class _Storage:
    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        step = 1
        for length, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if length != 1 and stride != step:
                return False
            step *= length
        return True


class _StandIn:
    """Takes the place of anything a pickle names: it can be called, filled and called again, and does nothing."""

    name = "?"

    def __new__(cls, *args: object, **kwargs: object) -> _StandIn:
        return super().__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.args = args

    def __call__(self, *args: object, **kwargs: object) -> _StandIn:
        return self

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        return

    def append(self, value: object) -> None:
        return

    def extend(self, values: object) -> None:
        return

    def add(self, value: object) -> None:
        return

    def __hash__(self) -> int:
        return id(self)


class _Inert(pickle.Unpickler):
    """Builds dicts, lists, numbers, texts and descriptions of tensors; everything else becomes a stand-in."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="bytes", errors="replace")
        self.imports: list[str] = []
        self.storages: list[_Storage] = []

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full == "collections.OrderedDict":
            return OrderedDict
        if full in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"):
            return _rebuilt
        if full == "torch._utils._rebuild_parameter":
            return _parameter
        if name in _STORAGES and module in ("torch", "torch.storage"):
            return _StorageKind(_STORAGES[name])
        if not module.startswith("torch"):
            self.imports.append(full)
        return type("StandIn", (_StandIn,), {"name": full})

    def persistent_load(self, pid: Any) -> Any:
        kind = pid[1].kind if isinstance(pid[1], _StorageKind) else "U8"
        key = pid[2].decode() if isinstance(pid[2], bytes) else str(pid[2])
        storage = _Storage(kind, key)
        self.storages.append(storage)
        return storage


@dataclass(frozen=True, slots=True)
class _StorageKind:
    kind: str


def _rebuilt(storage: Any, offset: Any, size: Any, stride: Any, *rest: object) -> Any:
    if not isinstance(storage, _Storage):
        return None
    return _Tensor(storage, int(offset), tuple(map(int, size)), tuple(map(int, stride)))


def _parameter(data: Any, *rest: object) -> Any:
    return data


def _described(
    kind: str, content: Any, reader: _Inert, odd: Callable[[_Tensor], tuple[int | None, int | None]], file: BinaryIO
) -> WeightsFile:
    walk = _Walk(odd, os.fstat(file.fileno()).st_size)
    walk.visit("", content, 0)
    keys = tuple(_text(key) for key in content) if isinstance(content, dict) else ()
    return WeightsFile(kind, keys, tuple(walk.tensors), walk.values, tuple(dict.fromkeys(reader.imports)))


class _Walk:
    """Lists what is in a content; small files can hold endlessly nested ones, so there is a limit."""

    def __init__(self, odd: Callable[[_Tensor], tuple[int | None, int | None]], file_bytes: int) -> None:
        self._bytes = _MOST_TIMES * file_bytes  # that are read: many tensors may say that they lie in the same place
        self.tensors: list[TensorEntry] = []
        self.values: dict[str, Any] = {}
        self._odd = odd
        self._room = _MOST_VISITS

    def visit(self, name: str, value: Any, depth: int) -> None:
        self._room -= 1
        if self._room < 0:
            raise ValueError(f"more than {_MOST_VISITS:,} entries")
        inner = f"{name}." if name else ""
        if isinstance(value, _Tensor):
            self._bytes -= value.size * _KINDS[value.storage.kind][0]
            odd = self._odd(value) if self._bytes >= 0 else (None, None)
            self.tensors.append(TensorEntry(name, value.storage.kind, value.shape, *odd))
        elif isinstance(value, dict) and depth < _MOST_DEPTH:
            for key, item in value.items():
                self.visit(f"{inner}{_text(key)}", item, depth + 1)
        elif isinstance(value, list | tuple) and depth < _MOST_DEPTH and any(map(_is_deep, value)):
            for index, item in enumerate(value):
                self.visit(f"{inner}{index}", item, depth + 1)
        elif isinstance(value, _StandIn):
            self.values[name] = f"<{type(value).name}>"
        else:
            self.values[name] = value if depth < _MOST_DEPTH else "..."


def _is_deep(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | _Tensor)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# Numbers ------------------------------------------------------------------------------------------------------


def _pieces(file: Any, size: int) -> Iterator[bytes]:
    while size > 0:
        piece = file.read(min(size, _PIECE))
        if not piece:
            raise EOFError("the file is cut off")
        yield piece
        size -= len(piece)


def _odd_elements(pieces: Iterator[bytes], kind: str) -> tuple[int | None, int | None]:
    """How many elements are NaN and infinite, by their bits; pieces hold whole elements."""
    width, layout = _KINDS.get(kind, (1, None))
    if layout is None:
        return None, None
    import numpy as np

    exponent, mantissa = layout
    nan = inf = 0
    rest = b""
    for piece in pieces:
        data = rest + piece
        whole = len(data) // width * width
        bits = np.frombuffer(data[:whole], dtype=f"<u{width}")
        rest = data[whole:]
        top = np.array((1 << exponent) - 1, bits.dtype)
        is_odd = (bits >> np.array(mantissa, bits.dtype)) & top == top
        has_fraction = bits & np.array((1 << mantissa) - 1, bits.dtype) != 0
        nan += int(np.count_nonzero(is_odd & has_fraction))
        inf += int(np.count_nonzero(is_odd & ~has_fraction))
    return nan, inf


def total_of(counts: Sequence[int | None]) -> int:
    return sum(count or 0 for count in counts)
