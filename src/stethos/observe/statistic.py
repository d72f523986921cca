"""Statistics of many tensors at once, read without touching them.

On CPU the elements are read through NumPy, which costs a tenth of torch's
per-operation dispatch on small tensors. The views come from DLPack, not from
`Tensor.numpy()`: that call marks the tensor's storage as not resizable for
good, and FSDP's `storage.resize_(0)` would then fail in the user's training.

Small tensors are gathered into one float64 vector and reduced by segment; big
ones are read in blocks that stay in the cache while every statistic reads
them. Whatever float32 cannot carry (non-finite elements, overflow, underflow,
cancellation) is noticed and computed again in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stethos.observe.device_row import columns_of, distances_of, joined, rows_of
from stethos.schema import NULL_F64

STATISTICS: tuple[str, ...] = ("norm", "mean", "std", "min", "max", "zero_share", "nan", "inf")

Array = npt.NDArray[Any]
Column = tuple[float, float, float, float, float, float, float, float]

_SMALL = 8192  # elements; below it the calls cost more than the reading
_BLOCK = 65536  # elements; 256 KiB of float32 stay in the second-level cache
_TINY = 1e-22  # a float32 sum of squares below this has lost digits to underflow
_TINY_F64 = 1e-280
_CANCELLED = 0.05  # variance / mean square below which float32 loses the variance
_CANCELLED_F64 = 1e-9
_NULL_COLUMN: Column = (NULL_F64,) * 8

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_NO_DISPATCH: Any = torch._C._disabled_torch_dispatch_impl
_F32, _STRIDED = torch.float32, torch.strided
_FLOATS = frozenset({torch.float32, torch.float64})
_ONES = np.ones(_BLOCK, np.float32)
_flatten: Any = torch._C._nn.flatten_dense_tensors
_to_dlpack: Any = torch._C._to_dlpack


def statistics_of(tensors: Sequence[torch.Tensor | None]) -> npt.NDArray[np.float64]:
    """Return `STATISTICS` as rows and the tensors as columns.

    Norm, mean, std, min and max are over the finite elements, `zero_share` is
    over all elements, `nan` and `inf` are counts. A column is NULL for None, an
    empty tensor, a meta tensor and a wrapper around other tensors; without a
    finite element its first five are.
    Complex tensors are read as their real and imaginary parts, sparse ones as
    their stored values, a DTensor as this process's shard.

    CPU tensors cost no torch operation on their elements beyond one gathering
    of the small ones. Tensors of another device are reduced there and copied
    here once, which waits for the device; `device_statistic` does not.
    """
    table = np.full((len(STATISTICS), len(tensors)), NULL_F64)
    small: dict[torch.dtype, list[tuple[int, torch.Tensor]]] = {}
    devices: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    with torch.no_grad():
        for index, given in enumerate(tensors):
            tensor = None if given is None else dense_of(given)
            if tensor is None:
                continue
            size = tensor.numel()
            if size == 0:
                continue
            if not tensor.is_cpu:
                devices.setdefault(tensor.device, []).append((index, tensor))
            elif size <= _SMALL:
                small.setdefault(tensor.dtype, []).append((index, tensor))
            else:
                table[:, index] = _of_big(tensor)
        for group in small.values():
            for part in _parts(group):
                _put_small(table, part)
        for group in devices.values():
            _put_device(table, group)
    return table


def norm_of(tensors: Sequence[torch.Tensor | None]) -> float:
    """Return the 2-norm of all tensors together, as cheaply as it can be had.

    NaN if any element is NaN, inf if any is infinite. NULL if there is no
    element to read or if a tensor is not in CPU memory: this is called every
    step and never waits for a device.
    """
    squares = 0.0
    small: list[torch.Tensor] = []
    big: list[torch.Tensor] = []
    for tensor in tensors:
        if tensor is None:
            continue
        if not (tensor.dtype is _F32 and tensor.is_cpu and tensor.layout is _STRIDED and type(tensor) in _PLAIN):
            return _norm_by_block(tensors)
        if tensor.numel() <= _SMALL:
            small.append(tensor)
        else:
            big.append(tensor)
    if small:  # torch's dot, as NumPy's warns of an overflow unless told not to, which costs as much as the dot
        vector = _flatten(small)
        squares = vector.dot(vector).item()
    if big:
        with np.errstate(all="ignore"):
            for tensor in big:
                flat = _numbers(tensor)
                squares += float(flat.dot(flat))
    return math.sqrt(squares) if _TINY < squares < math.inf else _norm_by_block(tensors)


def estimated_norm_of(tensors: Sequence[torch.Tensor | None]) -> float:
    """About the 2-norm of all tensors together: of big ones a part of the elements stands for all.

    As `norm_of` where an element is not finite or all that are read are 0.
    """
    squares = 0.0
    rest: list[torch.Tensor | None] = []
    for tensor in tensors:
        if tensor is None:
            continue
        is_plain = tensor.dtype is _F32 and tensor.is_cpu and type(tensor) in _PLAIN and tensor.layout is _STRIDED
        if not is_plain or tensor.numel() <= _SMALL:
            rest.append(tensor)
            continue
        flat = _numbers(tensor)
        stride = len(flat) // (_SMALL // 4) | 1  # odd, so that it walks through the columns
        part = flat[::stride].astype(np.float64)
        squares += float(part.dot(part)) * len(flat) / len(part)
    small = norm_of(rest) if rest else 0.0
    total = squares + small * small
    return math.sqrt(total) if 0 < total < math.inf else norm_of(tensors)


def drift_of(now: Sequence[torch.Tensor], start: Sequence[torch.Tensor]) -> npt.NDArray[np.float64]:
    """Return the 2-norm of `now - start` for each pair, without a temporary of their size.

    NaN or inf where an element is. NULL where the shapes differ and for meta
    tensors. A pair on a device is compared there, and waited for.
    """
    drifts = np.full(len(now), NULL_F64)
    small: list[tuple[int, torch.Tensor]] = []
    with torch.no_grad(), np.errstate(all="ignore"):
        for index, (given, given_start) in enumerate(zip(now, start, strict=True)):
            a, b = dense_of(given), dense_of(given_start)
            if a is None or b is None or a.shape != b.shape or not a.numel():
                continue
            if a.numel() <= _SMALL and a.dtype is b.dtype is _F32 and a.is_cpu and b.is_cpu:
                small.append((index, a - b))
            else:
                drifts[index] = _distance(a.reshape(-1), b.reshape(-1))
        for part in _parts(small):
            x, starts, _ = _gathered([change for _, change in part])
            drifts[[index for index, _ in part]] = np.sqrt(np.add.reduceat(x * x, starts))
    return drifts


class _Export:
    """Hands a CPU tensor's memory to `numpy.from_dlpack`, gradients or not.

    The tensor's own `__dlpack__` is four times as slow and refuses one that requires grad.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_: object) -> Any:
        return _to_dlpack(self.tensor)


def _numbers(tensor: torch.Tensor) -> Array:
    """A flat, read-only view of a CPU tensor's elements, in the order of memory where that saves a copy."""
    return array_of(tensor).ravel(order="K")


def array_of(tensor: torch.Tensor) -> Array:
    """A read-only view of a CPU tensor; of a type that NumPy has."""
    return np.from_dlpack(_Export(tensor))


def dense_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The strided real tensor that holds the elements; None where there are none to read."""
    if type(tensor) not in _PLAIN:
        to_local = getattr(tensor.detach(), "to_local", None)
        if to_local is not None:
            tensor = to_local()
        if type(tensor).__torch_dispatch__ is not _NO_DISPATCH:
            return None  # a wrapper (fake, quantized, nested): what its own memory holds is not its elements
    if tensor.is_nested:
        return None
    layout = tensor.layout
    if layout is not torch.strided:
        if layout is torch.sparse_coo:
            tensor = tensor.detach().coalesce().values()
        elif layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
            tensor = tensor.detach().values()
        else:
            tensor = tensor.detach().to_dense()
    if tensor.is_meta:
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def _blocks(tensor: torch.Tensor) -> Iterator[Array]:
    """A CPU tensor's elements as float32 or float64, a cacheful at a time."""
    if tensor.dtype in _FLOATS:
        numbers = _numbers(tensor)
        for at in range(0, numbers.size, _BLOCK):
            yield numbers[at : at + _BLOCK]
        return
    flat = tensor.reshape(-1)
    dtype = torch.float32 if tensor.dtype.is_floating_point else torch.float64
    for block in torch.split(flat, _BLOCK):
        yield _numbers(block.to(dtype))


def _parts(group: Iterable[tuple[int, torch.Tensor]]) -> Iterator[list[tuple[int, torch.Tensor]]]:
    """Cut a group of small tensors so that each part's float64 copy stays in the cache."""
    part: list[tuple[int, torch.Tensor]] = []
    room = _BLOCK
    for pair in group:
        part.append(pair)
        room -= pair[1].numel()
        if room <= 0:
            yield part
            part, room = [], _BLOCK
    if part:
        yield part


def _gathered(tensors: list[torch.Tensor]) -> tuple[Array, Array, Array]:
    """CPU tensors of one dtype as one float64 vector, with where each starts and its size."""
    flat = _flatten(tensors)
    x = _numbers(flat).astype(np.float64) if flat.dtype is _F32 else _numbers(flat.double())
    sizes = np.array([tensor.numel() for tensor in tensors])
    return x, sizes.cumsum() - sizes, sizes


def _put_small(table: npt.NDArray[np.float64], part: list[tuple[int, torch.Tensor]]) -> None:
    """Fill the columns of small CPU tensors of one dtype, all at once in float64."""
    tensors = [tensor for _, tensor in part]
    x, starts, sizes = _gathered(tensors)
    with np.errstate(all="ignore"):
        squares = np.add.reduceat(x * x, starts)
        mean = np.add.reduceat(x, starts) / sizes
        variance = squares / sizes - mean * mean
        lo, hi = np.minimum.reduceat(x, starts), np.maximum.reduceat(x, starts)
        if not (variance * sizes > _CANCELLED_F64 * squares).all():
            variance = np.add.reduceat(np.square(x - mean.repeat(sizes)), starts) / sizes
        is_zero = np.equal(x, 0.0)
        zeros = np.add.reduceat(is_zero, starts, dtype=np.int64) / sizes if is_zero.any() else np.zeros(len(part))
        is_odd = ~((squares > _TINY_F64) & (squares < math.inf) | (lo == 0.0) & (hi == 0.0))
        columns = [index for index, _ in part]
        table[:, columns] = (np.sqrt(squares), mean, np.sqrt(variance), lo, hi, zeros, *np.zeros((2, len(part))))
    if is_odd.any():
        for position in np.flatnonzero(is_odd):
            table[:, columns[position]] = _of_odd(tensors[position])


def _of_big(tensor: torch.Tensor) -> Column:
    """The column of one big CPU tensor: every block is read five times, from the cache."""
    squares = total = 0.0
    lo, hi = math.inf, -math.inf
    zeros = 0
    is_zero = np.empty(_BLOCK, np.bool_)
    size = tensor.numel()
    with np.errstate(all="ignore"):
        for block in _blocks(tensor):
            count = block.size
            squares += float(block.dot(block))
            if not squares < math.inf:
                return _of_odd(tensor)
            # BLAS sums a block in less than half of np.sum's time and carries its partial sums in float64.
            total += float(block.dot(_ONES[:count]) if block.dtype == np.float32 else block.sum())
            block_lo, block_hi = float(np.minimum.reduce(block)), float(np.maximum.reduce(block))
            lo, hi = min(lo, block_lo), max(hi, block_hi)
            if block_lo <= 0.0 <= block_hi:
                zeros += int(np.count_nonzero(np.equal(block, 0.0, out=is_zero[:count])))
    is_f64 = tensor.dtype is torch.float64
    if squares < (_TINY_F64 if is_f64 else _TINY) and not lo == hi == 0.0:
        return _of_odd(tensor)
    mean = total / size
    variance = squares / size - mean * mean
    if variance * size <= (_CANCELLED_F64 if is_f64 else _CANCELLED) * squares:
        mean, variance = _centred(tensor, mean)
    return (math.sqrt(squares), mean, math.sqrt(variance), lo, hi, zeros / size, 0.0, 0.0)


def _centred(tensor: torch.Tensor, mean: float) -> tuple[float, float]:
    """A finite CPU tensor's mean and variance in float64, given its mean to a few digits."""
    total = squares = 0.0
    size = tensor.numel()
    for block in _blocks(tensor):
        x = block.astype(np.float64)
        x -= mean
        total += float(x.sum())
        squares += float(x.dot(x))
    shift = total / size
    return mean + shift, max(squares / size - shift * shift, 0.0)


def _of_odd(tensor: torch.Tensor) -> Column:
    """The column of a CPU tensor with non-finite, huge or tiny elements: float64, three passes.

    Elements are divided by the largest magnitude before they are squared.
    """
    wide = torch.float64
    flat = tensor.reshape(-1)
    blocks = torch.split(flat, _BLOCK)
    infinity = torch.tensor(math.inf, dtype=wide, device=flat.device)
    first = []
    for block in blocks:
        x = block.to(wide)
        is_finite = x.isfinite()
        lo_hi = (torch.where(is_finite, x, infinity).amin(), torch.where(is_finite, x, -infinity).amax())
        counts = (x.isnan().sum(), x.isinf().sum(), (x == 0).sum())
        first.append(torch.stack([*lo_hi, *(count.to(wide) for count in counts)]))
    seen = torch.stack(first).numpy()
    lo, hi = float(seen[:, 0].min()), float(seen[:, 1].max())
    nan, inf, zeros = (float(count) for count in seen[:, 2:].sum(axis=0))
    size = flat.numel()
    finite = size - nan - inf
    if finite == 0:
        return (*_NULL_COLUMN[:5], zeros / size, nan, inf)
    scale = max(abs(lo), abs(hi)) or 1.0

    def scaled() -> Iterator[torch.Tensor]:
        for block in blocks:
            x = block.to(wide)
            yield x[x.isfinite()] / scale

    mean = float(sum(x.sum() for x in scaled())) / finite
    sums = torch.stack([torch.stack([x.square().sum(), (x - mean).square().sum()]) for x in scaled()]).sum(0).tolist()
    norm, deviation = math.sqrt(sums[0]), math.sqrt(sums[1] / finite)
    return (norm * scale, mean * scale, deviation * scale, lo, hi, zeros / size, nan, inf)


def _put_device(table: npt.NDArray[np.float64], group: list[tuple[int, torch.Tensor]]) -> None:
    """Fill the columns of tensors that live on one device, with one copy to the host."""
    tensors = [tensor for _, tensor in group]
    rows, blocks = rows_of(tensors)
    seen = joined(rows.to("cpu", torch.float64).numpy(), blocks)
    table[:, [index for index, _ in group]] = columns_of(seen, [tensor.numel() for tensor in tensors])


def _norm_by_block(tensors: Iterable[torch.Tensor | None]) -> float:
    """The 2-norm of CPU tensors of any kind, in float64; NULL if there is none or one is elsewhere."""
    norms = []
    with torch.no_grad(), np.errstate(all="ignore"):
        for given in tensors:
            tensor = None if given is None else dense_of(given)
            if given is not None and (tensor is None or not tensor.is_cpu):
                return NULL_F64
            if tensor is None or tensor.numel() == 0:
                continue
            norms += [_norm(block.astype(np.float64, copy=False)) for block in _blocks(tensor)]
        return _norm(np.array(norms)) if norms else NULL_F64


def _norm(x: Array) -> float:
    """The 2-norm of a float64 vector, safe from overflow and underflow."""
    squares = float(x.dot(x))
    if _TINY_F64 < squares < math.inf:
        return math.sqrt(squares)
    scale = float(np.abs(x).max())
    if scale == 0.0 or not math.isfinite(scale):
        return scale
    x = x / scale
    return math.sqrt(float(x.dot(x))) * scale


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The 2-norm of the difference of two flat tensors of one size."""
    if not a.is_cpu:
        return float(distances_of([(a, b)]))
    norms64 = []
    for x, y in zip(_blocks(a), _blocks(b.cpu()), strict=True):
        change = x - y
        squares = float(change.dot(change))
        is_exact = _TINY < squares < math.inf
        norms64.append(math.sqrt(squares) if is_exact else _norm(x.astype(np.float64) - y))
    return _norm(np.array(norms64))
