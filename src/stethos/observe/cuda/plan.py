"""How a list of tensors is cut into chunks for the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ALIGNMENT = 16  # bytes; what one load reads


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPlan:
    """`chunks` has a row of tensor, first element and length for each program, `spans` first chunk and number of
    chunks for each tensor."""

    chunks: npt.NDArray[np.int64]
    spans: npt.NDArray[np.int64]


def plan_of(sizes: Sequence[int], heads: Sequence[int], block: int) -> ChunkPlan:
    """Cut tensors of these sizes into chunks of `block` elements.

    `heads` are the elements before the first one that lies on an alignment: a
    chunk of its own, so that whole chunks are always aligned.
    """
    chunks, spans, first = [], [], 0
    for tensor, (size, head) in enumerate(zip(sizes, heads, strict=True)):
        head = min(head, size)
        starts = np.arange(head, size, block, dtype=np.int64)
        lengths = np.minimum(block, size - starts)
        if head:
            starts, lengths = np.append(0, starts), np.append(head, lengths)
        chunks.append(np.stack([np.full(len(starts), tensor), starts, lengths], axis=1))
        spans.append((first, len(starts)))
        first += len(starts)
    return ChunkPlan(np.concatenate(chunks), np.array(spans, np.int64))


def head_of(address: int, element_bytes: int) -> int:
    """Elements from an address to the next aligned one."""
    return -address % ALIGNMENT // element_bytes
