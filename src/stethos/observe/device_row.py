"""Reducing tensors on their device by torch's operations, and putting the results together here.

A tensor becomes nine numbers: how many elements are finite, their mean and
the squared deviations from it, the smallest, the largest, zeros, NaN and
infinite elements, and the sum of its bits as the bits of a float64. Big ones
are reduced in blocks, which are joined later.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from stethos.schema import NULL_F64

Rows = npt.NDArray[np.float64]
ROWS = 9
BLOCK = 1 << 24  # elements; bounds the float64 copies made on the device
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element
_FOLDED = 52  # bits; whole numbers that a float64 holds


def wide_of(tensor: torch.Tensor) -> torch.dtype:
    """The widest float that the tensor's device computes with."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def rows_of(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
    """Reduce tensors of one device: nine rows there, and the number of blocks of each. Nothing waits."""
    columns, blocks = [], []
    for tensor in tensors:
        parts = torch.split(tensor.reshape(-1), BLOCK)
        columns += [_column_of(part, wide_of(tensor)) for part in parts]
        blocks.append(len(parts))
    return torch.stack(columns, dim=1), blocks


def _column_of(part: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    x = part.to(wide)
    is_finite = x.isfinite()
    finite = is_finite.sum().to(x.dtype)
    mean = torch.where(is_finite, x, 0.0).sum() / finite.clamp(min=1.0)
    squares = torch.where(is_finite, x - mean, 0.0).square().sum()
    lo, hi = torch.where(is_finite, x, torch.inf).amin(), torch.where(is_finite, x, -torch.inf).amax()
    counts = ((x == 0).sum(), x.isnan().sum(), x.isinf().sum())
    bits = part.view(WORDS[part.element_size()]).sum().view(torch.float64) if wide is torch.float64 else x.new_zeros(())
    return torch.stack([finite, mean, squares, lo, hi, *(count.to(x.dtype) for count in counts), bits])


def distances_of(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """The 2-norms of the differences of tensors of one size and device, as a vector there. Nothing waits."""
    norms = []
    for now, start in pairs:
        wide = wide_of(now)
        parts = zip(torch.split(now.reshape(-1), BLOCK), torch.split(start.reshape(-1), BLOCK), strict=True)
        squares = [torch.linalg.vector_norm(x.to(wide) - y.to(x.device, wide)) for x, y in parts]
        norms.append(squares[0] if len(squares) == 1 else torch.linalg.vector_norm(torch.stack(squares)))
    return torch.stack(norms)


def joined(rows: Rows, blocks: Sequence[int]) -> Rows:
    """Put the blocks of each tensor together: counts add up, means and deviations as Chan, Golub and LeVeque do."""
    if rows.shape[1] == len(blocks):
        return rows
    starts = np.cumsum([0, *blocks[:-1]])
    counts, means = rows[0], rows[1]
    finite = np.add.reduceat(counts, starts)
    mean = np.add.reduceat(counts * means, starts) / np.maximum(finite, 1.0)
    apart = counts * np.square(means - np.repeat(mean, blocks))
    return np.stack([
        finite, mean, np.add.reduceat(rows[2] + apart, starts),
        np.minimum.reduceat(rows[3], starts), np.maximum.reduceat(rows[4], starts),
        *(np.add.reduceat(row, starts) for row in rows[5:8]),
        np.add.reduceat(np.ascontiguousarray(rows[8]).view(np.int64), starts).view(np.float64),
    ])  # fmt: skip


def columns_of(rows: Rows, sizes: Sequence[int] | Rows) -> Rows:
    """The columns of `STATISTICS` for tensors of these sizes."""
    finite, mean, squares, lo, hi, zeros, nan, inf = rows[:8]
    norm = np.hypot(np.sqrt(squares), np.sqrt(finite) * np.abs(mean))
    std = np.sqrt(squares / np.maximum(finite, 1.0))
    table = np.stack([norm, mean, std, lo, hi, zeros / np.asarray(sizes, np.float64), nan, inf])
    table[:5, finite == 0] = NULL_F64
    return table


def checksums_in(rows: Rows) -> Rows:
    """The sums of bits folded into what a float64 holds: one changed bit changes them still."""
    sums = np.ascontiguousarray(rows[8]).view(np.uint64)
    return ((sums ^ (sums >> _FOLDED)) & np.uint64((1 << _FOLDED) - 1)).astype(np.float64)
