"""A digest of the model that a client received: clients that were given the same one have the same digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_WHOLE_BYTES = 64 << 20  # a larger model is looked at in pieces spread over all of it
_PIECE_BYTES = 1 << 16


def digest_of(model: Mapping[str, Any]) -> str | None:
    """Of layers by name: bytes, arrays or CPU tensors. None for one with anything else, such as a tensor on a GPU."""
    parts = {str(name): _bytes_of(value) for name, value in model.items()}
    if not parts or any(part is None for part in parts.values()):
        return None
    total = sum(part.nbytes for part in parts.values() if part is not None)
    stride = -(-total // _WHOLE_BYTES) * _PIECE_BYTES
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(parts):
        part = parts[name]
        assert part is not None
        found.update(f"{name}:{part.nbytes}:".encode("utf-8", "replace"))
        if total <= _WHOLE_BYTES:
            found.update(part)
            continue
        for start in range(0, part.nbytes, stride):
            found.update(part[start : start + _PIECE_BYTES])
    return found.hexdigest()


def _bytes_of(value: Any) -> memoryview | None:
    if isinstance(value, bytes | bytearray | memoryview):
        return memoryview(value).cast("B")
    if hasattr(value, "detach"):
        if value.device.type != "cpu" or value.dtype.is_complex:
            return None
        import torch

        value = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    array: Any = np.ascontiguousarray(value)
    if array.dtype == object:
        return None
    return memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")
