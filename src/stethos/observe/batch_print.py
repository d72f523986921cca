"""A small fingerprint of a tensor of a batch: its scale, its zeros, and a hash of a sample of its elements."""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stethos.observe.statistic import array_of
from stethos.schema import NULL_F64

_MOST_ELEMENTS = 4096
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_ALIKE, _SAME = 0.9999, 1 - 1e-6  # of a column, and of a place in a series, whose neighbours are alike
_MOST_ROWS = 256  # of a table that is searched for its labels
ONLY_TORCH = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_MOST_CLASSES = 4096  # a label beyond is a number, not a class

Array = npt.NDArray[Any]


class BatchPrint(NamedTuple):
    """Numbers of one tensor, NULL where they were not taken; over at most `_MOST_ELEMENTS` elements."""

    hash: float = NULL_F64
    mean: float = NULL_F64
    std: float = NULL_F64
    min: float = NULL_F64
    max: float = NULL_F64
    zero_share: float = NULL_F64
    nan_share: float = NULL_F64


def is_readable(tensor: torch.Tensor | None) -> bool:
    """Whether looking at the values would neither wait for a device nor run somebody's code, and they are there.

    FSDP frees the memory of gathered parameters after the forward pass and leaves their shape.
    """
    if tensor is None or type(tensor) not in _PLAIN or not tensor.is_cpu or tensor.layout is not torch.strided:
        return False
    if _is_wrapped(tensor):  # within `torch.func.vmap` or `grad`
        return False
    last = tensor.storage_offset() + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return not tensor.numel() or tensor.untyped_storage().nbytes() >= (last + 1) * tensor.element_size()


def print_of(tensor: torch.Tensor | None) -> BatchPrint:
    """The fingerprint of a tensor in CPU memory; of any other all NULL."""
    if tensor is None or not is_readable(tensor) or not tensor.numel() or tensor.is_complex():
        return BatchPrint()
    values = numbers_of(_sampled(tensor)).astype(np.float64)
    digest, count = float(zlib.crc32(values.tobytes())), len(values)
    zero_share, nan_share = 1 - np.count_nonzero(values) / count, 0.0
    total = float(np.add.reduce(values))
    if not math.isfinite(total):
        nan_share = np.count_nonzero(np.isnan(values)) / count
        values = values[np.isfinite(values)]
        if not len(values):
            return BatchPrint(hash=digest, nan_share=nan_share)
        total = float(np.add.reduce(values))
    mean = total / len(values)
    low, high = float(np.minimum.reduce(values)), float(np.maximum.reduce(values))
    centred = values - mean
    std = math.sqrt(float(np.dot(centred, centred)) / len(values)) if high > low else 0.0
    return BatchPrint(digest, mean, std, low, high, zero_share, nan_share)


def class_counts(labels: torch.Tensor | None) -> list[int] | None:
    """How often each class occurs in labels that are small whole numbers; None for anything else."""
    if labels is None or not is_readable(labels) or not labels.numel() or labels.is_complex():
        return None
    values = numbers_of(labels.detach().reshape(-1)[:_MOST_ELEMENTS])
    if values.dtype.kind == "f" and not bool((values == np.rint(values)).all()):
        return None
    values = values[values >= 0]  # -100 and the like: left out of the loss
    if not len(values) or int(values.max()) >= _MOST_CLASSES:
        return None
    counts: list[int] = np.bincount(values.astype(np.int64)).tolist()
    return counts


def equal_column(inputs: torch.Tensor | None, labels: torch.Tensor | None) -> int:
    """The column of a table of inputs that equals the labels, -1 if none does: the answer is among the questions."""
    if inputs is None or labels is None or not is_readable(inputs) or not is_readable(labels) or inputs.dim() < 2:
        return -1
    rows, alike = labels.numel(), _ALIKE if inputs.dim() == 2 and len(inputs) == labels.numel() else _SAME
    if rows < 8 or len(inputs) % rows or not len(inputs) or not inputs.is_floating_point():
        return -1
    if len(inputs) != rows:  # the steps of sequences one after the other, each with all samples
        inputs = inputs.reshape(-1, rows, inputs[0].numel()).transpose(0, 1)
    last = inputs.shape[-1] if inputs.dim() > 2 else inputs[0].numel()  # of a series: to recall an early step is a task
    inputs = inputs.reshape(rows, -1)
    if inputs.shape[1] > _MOST_ELEMENTS:
        return -1
    target = numbers_of(labels.detach().reshape(-1)[:_MOST_ROWS]).astype(np.float64)
    if bool((target == target[0]).all()):
        return -1
    with np.errstate(all="ignore"):
        table, target = numbers_of(inputs.detach()[:_MOST_ROWS]), target - target.mean()
        centred = table - table.mean(0)
        likeness = np.abs(np.einsum("rc,r->c", centred, target)) / np.sqrt(
            np.einsum("rc,rc->c", centred, centred).clip(1e-24) * np.dot(target, target)
        )
        best = int(likeness.argmax())  # the first NaN, if there is one
        return best if float(likeness[best]) > alike and best >= table.shape[1] - last else -1


def numbers_of(tensor: torch.Tensor) -> Array:
    """The numbers of a readable tensor; a view where NumPy has their type. A few are read faster so than by torch."""
    tensor = tensor.detach().resolve_neg()
    return array_of(tensor.float() if tensor.dtype in ONLY_TORCH else tensor)


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    """Elements spread evenly over the tensor, never the same few corners of every sample."""
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()[:_MOST_ELEMENTS].reshape(-1)
    step = max(1, flat.numel() // _MOST_ELEMENTS)
    if step > 1 and step % 2 == 0:
        step += 1
    return flat[::step][:_MOST_ELEMENTS]
