"""A small fingerprint of a tensor of a batch: its scale, its zeros, and a hash of a sample of its elements."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import torch

from stethos.schema import NULL_F64

_MOST_ELEMENTS = 4096
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_MOST_CLASSES = 4096  # a label beyond is a number, not a class


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
    last = tensor.storage_offset() + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return not tensor.numel() or tensor.untyped_storage().nbytes() >= (last + 1) * tensor.element_size()


def print_of(tensor: torch.Tensor | None) -> BatchPrint:
    """The fingerprint of a tensor in CPU memory; of any other all NULL."""
    if tensor is None or not is_readable(tensor) or not tensor.numel() or tensor.is_complex():
        return BatchPrint()
    values = _sampled(tensor).to(torch.float64)
    is_nan = values.isnan()
    finite = values[values.isfinite()]
    nan_share = float(is_nan.double().mean())
    digest = float(zlib.crc32(values.numpy().tobytes()))
    if not finite.numel():
        return BatchPrint(hash=digest, nan_share=nan_share)
    std = float(finite.std(correction=0))
    return BatchPrint(
        digest, float(finite.mean()), std, float(finite.min()), float(finite.max()),
        float((values == 0).double().mean()), nan_share,
    )  # fmt: skip


def class_counts(labels: torch.Tensor | None) -> list[int] | None:
    """How often each class occurs in labels that are small whole numbers; None for anything else."""
    if labels is None or not is_readable(labels) or not labels.numel():
        return None
    values = labels.detach().reshape(-1)[:_MOST_ELEMENTS]
    if values.is_floating_point():
        if not bool((values == values.round()).all()):
            return None
        values = values.long()
    if values.dtype == torch.bool:
        values = values.long()
    values = values[values >= 0]  # -100 and the like: left out of the loss
    if values.is_complex() or not values.numel() or int(values.max()) >= _MOST_CLASSES:
        return None
    return [int(count) for count in torch.bincount(values)]


def equal_column(inputs: torch.Tensor | None, labels: torch.Tensor | None) -> int:
    """The column of a table of inputs that equals the labels, -1 if none does: the answer is among the questions."""
    if inputs is None or labels is None or not is_readable(inputs) or not is_readable(labels) or inputs.dim() != 2:
        return -1
    rows = inputs.shape[0]
    flat = labels.detach().reshape(-1)
    if flat.numel() != rows or rows < 8 or inputs.shape[1] > _MOST_ELEMENTS or not inputs.is_floating_point():
        return -1
    flat = flat.to(inputs.dtype)
    if bool((flat == flat[0]).all()):
        return -1
    centred, target = inputs.detach() - inputs.detach().mean(0), flat - flat.mean()
    likeness = (centred * target[:, None]).sum(0).abs() / (centred.norm(dim=0) * target.norm()).clamp_min(1e-12)
    best = int(likeness.argmax())
    return best if float(likeness[best]) > 0.9999 else -1


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    """Elements spread evenly over the tensor, never the same few corners of every sample."""
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()[:_MOST_ELEMENTS].reshape(-1)
    step = max(1, flat.numel() // _MOST_ELEMENTS)
    if step > 1 and step % 2 == 0:
        step += 1
    return flat[::step][:_MOST_ELEMENTS]
