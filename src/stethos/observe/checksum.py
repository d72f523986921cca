"""Checksums of a model's tensors, by which ranks that hold copies of it can be compared to the last bit."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import torch

from stethos.observe.batch_print import is_readable

_MOST_BYTES = 64 << 20  # of one model; layers beyond are not compared
_MOST_LAYERS = 64
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksums_of(
    tensors: Sequence[torch.Tensor | None], names: Iterable[str], most_bytes: int = _MOST_BYTES
) -> dict[str, int]:
    """By name the sum of a tensor's bits as whole numbers: one changed bit changes it.

    Left out are tensors on a device, sharded ones and other wrappers, and what is too much. Of many layers
    neighbours are put together under the name of the first.
    """
    found: list[tuple[str, int]] = []
    left = most_bytes
    for tensor, name in zip(tensors, names, strict=True):
        if tensor is None or not is_readable(tensor):
            continue
        words = _WORDS.get(tensor.element_size())
        left -= tensor.nbytes
        if words is not None and not tensor.is_complex() and left >= 0:
            found.append((name, int(tensor.detach().view(words).sum())))
    together = -(-len(found) // _MOST_LAYERS) or 1
    parts = [found[at : at + together] for at in range(0, len(found), together)]
    return {part[0][0]: crc_of(number for _, number in part) for part in parts}


def crc_of(numbers: Iterable[int]) -> int:
    """One number of 32 bits for several."""
    return zlib.crc32(b"".join((number & (1 << 64) - 1).to_bytes(8, "little") for number in numbers))
