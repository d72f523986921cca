"""One launch that reads every tensor of a list once and reduces each to nine numbers, one of them a checksum.

The tensors are cut into chunks of at most `BLOCK` elements, one chunk per
program. A program holds its chunk in registers, so that the deviation from
the chunk's own mean is taken without reading it again: no cancellation, and
no overflow or underflow either, as elements are divided by the chunk's
largest. The program that finishes a tensor's last chunk puts its chunks
together in float64.

The checksum is the sum of the elements' bits as whole numbers, in 64 bits: one
changed bit changes it, and how the tensor is cut does not. It travels as the
bits of a float64.

Whole chunks begin on 16 bytes and are read without a mask, in loads of 16
bytes; the few others (the end of a tensor, the beginning of one that lies
askew) with one.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _of_finite(x, count, TINY: tl.constexpr):
    """Sum, squared deviations from the mean, smallest, largest and zeros of a whole chunk, if all is finite."""
    zeros = tl.sum((x == 0.0).to(tl.int32), 0)
    lo = tl.min(x, 0)
    hi = tl.max(x, 0)
    total = tl.sum(x, 0)
    largest = tl.maximum(tl.maximum(tl.abs(lo), tl.abs(hi)), TINY)
    deviation = (x - total / count) * (1.0 / largest)
    rest = tl.sum(deviation, 0).to(tl.float64)  # what rounding has left in the mean
    squares = tl.sum(deviation * deviation, 0).to(tl.float64) - rest * rest / count
    scale = largest.to(tl.float64)
    return total.to(tl.float64) + rest * scale, tl.maximum(squares, 0.0) * scale * scale, lo, hi, zeros


@triton.jit
def _put(place, stride, finite, total, squares, lo, hi, zeros, nan, infinite, bits):
    tl.store(place, finite.to(tl.float64))
    tl.store(place + stride, total)
    tl.store(place + 2 * stride, squares)
    tl.store(place + 3 * stride, lo.to(tl.float64))
    tl.store(place + 4 * stride, hi.to(tl.float64))
    tl.store(place + 5 * stride, zeros.to(tl.float64))
    tl.store(place + 6 * stride, nan.to(tl.float64))
    tl.store(place + 7 * stride, infinite.to(tl.float64))
    tl.store(place + 8 * stride, bits.to(tl.float64, bitcast=True))


@triton.jit
def _put_odd(
    base, count, place, stride, WIDE: tl.constexpr, WORD: tl.constexpr, TINY: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The same where the chunk is not whole or something in it is not finite: over the finite elements, in tiles.

    It reads the chunk three times, mostly from the cache; few chunks come here.
    """
    lanes = tl.arange(0, TILE)
    nan = tl.zeros((TILE,), tl.int32)
    finite = tl.zeros((TILE,), tl.int32)
    zeros = tl.zeros((TILE,), tl.int32)
    lo = tl.full((TILE,), float("inf"), WIDE)
    hi = tl.full((TILE,), float("-inf"), WIDE)
    bits = tl.zeros((TILE,), tl.int64)
    for at in range(0, count, TILE):
        inside = at + lanes < count
        raw = tl.load(base + at + lanes, mask=inside, other=1.0)
        bits += tl.where(inside, raw.to(WORD, bitcast=True).to(tl.int64), 0)
        x = raw.to(WIDE)
        is_finite = (tl.abs(x) < float("inf")) & inside
        nan += (x != x).to(tl.int32)
        finite += is_finite.to(tl.int32)
        zeros += (x == 0.0).to(tl.int32)
        lo = tl.minimum(lo, tl.where(is_finite, x, float("inf")))
        hi = tl.maximum(hi, tl.where(is_finite, x, float("-inf")))
    nans, finites = tl.sum(nan, 0), tl.sum(finite, 0)
    smallest, highest = tl.min(lo, 0), tl.max(hi, 0)
    largest = tl.where(finites > 0, tl.maximum(tl.abs(smallest), tl.abs(highest)), 0.0).to(WIDE)
    largest = tl.maximum(largest, TINY)
    total = tl.zeros((TILE,), WIDE)
    for at in range(0, count, TILE):
        x = tl.load(base + at + lanes, mask=at + lanes < count, other=0.0).to(WIDE)
        total += tl.where(tl.abs(x) < float("inf"), x / largest, 0.0)
    sum_ = tl.sum(total, 0)
    mean = sum_ / tl.maximum(finites, 1).to(WIDE)
    squares = tl.zeros((TILE,), WIDE)
    rest = tl.zeros((TILE,), WIDE)
    for at in range(0, count, TILE):
        inside = at + lanes < count
        x = tl.load(base + at + lanes, mask=inside, other=0.0).to(WIDE)
        deviation = tl.where((tl.abs(x) < float("inf")) & inside, x / largest - mean, 0.0)
        squares += deviation * deviation
        rest += deviation
    left = tl.sum(rest, 0).to(tl.float64)
    spread = tl.maximum(tl.sum(squares, 0).to(tl.float64) - left * left / tl.maximum(finites, 1), 0.0)
    scale = largest.to(tl.float64)
    _put(
        place, stride, finites, (sum_.to(tl.float64) + left) * scale, spread * scale * scale, smallest,
        highest, tl.sum(zeros, 0), nans, count - nans - finites, tl.sum(bits, 0),
    )  # fmt: skip


@triton.jit(do_not_specialize=["chunk_count", "tensor_count"])  # else it is compiled anew for some numbers
def reduce_all(
    pointers, chunks, spans, finished, partials, results, chunk_count, tensor_count,
    ELEMENT: tl.constexpr, WIDE: tl.constexpr, WORD: tl.constexpr, TINY: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Each program one chunk: `chunks` has tensor, first element and length, `spans` first chunk and their number.

    `partials` and `results` are nine rows of float64: finite elements, their sum (in results the mean), squared
    deviations, smallest, largest, zeros, NaN, infinite, checksum. `finished` counts each tensor's chunks and is left at
    0.
    """
    chunk = tl.program_id(0)
    tensor = tl.load(chunks + 3 * chunk)
    start = tl.load(chunks + 3 * chunk + 1)
    count = tl.load(chunks + 3 * chunk + 2).to(tl.int32)
    first = tl.load(spans + 2 * tensor)
    parts = tl.load(spans + 2 * tensor + 1)
    base = tl.load(pointers + tensor).to(tl.pointer_type(ELEMENT)) + start
    offsets = tl.arange(0, BLOCK)
    place = partials + chunk
    is_odd = count != BLOCK
    if count == BLOCK:
        where = tl.max_contiguous(tl.multiple_of(tl.multiple_of(base, 16) + offsets, 16), BLOCK)
        raw = tl.load(where, eviction_policy="evict_first")
        bits = tl.sum(raw.to(WORD, bitcast=True).to(tl.int64), 0)
        x = raw.to(WIDE)
        total, squares, lo, hi, zeros = _of_finite(x, BLOCK * 1.0, TINY)
        is_odd = (tl.abs(total) < float("inf")) == 0
        _put(place, chunk_count, count, total, squares, lo, hi, zeros, 0 * zeros, 0 * zeros, bits)
    if is_odd:
        _put_odd(base, count, place, chunk_count, WIDE, WORD, TINY, TILE)
    tl.debug_barrier()
    if tl.atomic_add(finished + tensor, 1, sem="acq_rel") == parts - 1:
        _join(partials + first, chunk_count, parts, results + tensor, tensor_count, WIDTH)
        tl.store(finished + tensor, 0)


@triton.jit
def _join(partials, stride, parts, result, result_stride, WIDTH: tl.constexpr):
    """Put a tensor's chunks together; their means and deviations as Chan, Golub and LeVeque do."""
    lanes = tl.arange(0, WIDTH)
    finite = tl.zeros((WIDTH,), tl.float64)
    total = tl.zeros((WIDTH,), tl.float64)
    zeros = tl.zeros((WIDTH,), tl.float64)
    nan = tl.zeros((WIDTH,), tl.float64)
    infinite = tl.zeros((WIDTH,), tl.float64)
    lo = tl.full((WIDTH,), float("inf"), tl.float64)
    hi = tl.full((WIDTH,), float("-inf"), tl.float64)
    checksum = tl.zeros((WIDTH,), tl.int64)
    for at in range(0, parts, WIDTH):
        here = at + lanes
        mask = here < parts
        finite += tl.load(partials + here, mask=mask, other=0.0, cache_modifier=".cg")
        total += tl.load(partials + stride + here, mask=mask, other=0.0, cache_modifier=".cg")
        lo = tl.minimum(lo, tl.load(partials + 3 * stride + here, mask=mask, other=float("inf"), cache_modifier=".cg"))
        hi = tl.maximum(hi, tl.load(partials + 4 * stride + here, mask=mask, other=float("-inf"), cache_modifier=".cg"))
        zeros += tl.load(partials + 5 * stride + here, mask=mask, other=0.0, cache_modifier=".cg")
        nan += tl.load(partials + 6 * stride + here, mask=mask, other=0.0, cache_modifier=".cg")
        infinite += tl.load(partials + 7 * stride + here, mask=mask, other=0.0, cache_modifier=".cg")
        bits = tl.load(partials + 8 * stride + here, mask=mask, other=0.0, cache_modifier=".cg")
        checksum += bits.to(tl.int64, bitcast=True)
    count = tl.sum(finite, 0)
    mean = tl.sum(total, 0) / tl.maximum(count, 1.0)
    squares = tl.zeros((WIDTH,), tl.float64)
    for at in range(0, parts, WIDTH):
        here = at + lanes
        mask = here < parts
        n = tl.load(partials + here, mask=mask, other=0.0, cache_modifier=".cg")
        own = tl.load(partials + stride + here, mask=mask, other=0.0, cache_modifier=".cg") / tl.maximum(n, 1.0)
        squares += tl.load(partials + 2 * stride + here, mask=mask, other=0.0, cache_modifier=".cg")
        squares += n * (own - mean) * (own - mean)
    tl.store(result, count)
    tl.store(result + result_stride, mean)
    tl.store(result + 2 * result_stride, tl.sum(squares, 0))
    tl.store(result + 3 * result_stride, tl.min(lo, 0))
    tl.store(result + 4 * result_stride, tl.max(hi, 0))
    tl.store(result + 5 * result_stride, tl.sum(zeros, 0))
    tl.store(result + 6 * result_stride, tl.sum(nan, 0))
    tl.store(result + 7 * result_stride, tl.sum(infinite, 0))
    tl.store(result + 8 * result_stride, tl.sum(checksum, 0).to(tl.float64, bitcast=True))
