"""Walks an autograd graph and reads the tensors it has saved; computes nothing on it and keeps nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_functorch = torch._C._functorch


def nodes_of(root: Any, most: int) -> Iterator[tuple[Any, int]]:
    """The nodes of a graph with their distance from the root, the nearest first; at most so many."""
    seen = {root}
    waiting: list[tuple[Any, int]] = [(root, 0)]
    for node, depth in waiting:  # grows while it is read
        yield node, depth
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen and len(seen) < most:
                seen.add(parent)
                waiting.append((parent, depth + 1))


def name_of(node: Any) -> str:
    """What a node differentiates, without torch's version number: `AddmmBackward`."""
    return str(node.name()).rstrip("0123456789")


def shape_of(node: Any) -> tuple[int, ...]:
    """The shape of what a node's operation has made."""
    made = getattr(node, "_input_metadata", None)
    return tuple(int(size) for size in made[0].shape) if made else ()


def saved(node: Any, name: str) -> torch.Tensor | None:
    """A tensor that a node has saved; None if it is gone, or a hook would have to bring it back.

    Activation checkpointing has such hooks: reading the tensor would run the forward pass again.
    """
    kept = getattr(node, f"_raw_saved_{name}", None)
    if kept is None or getattr(kept, "unpack_hook", True) is not None:
        return None
    try:
        tensor = getattr(node, f"_saved_{name}")
    except RuntimeError:  # freed, or changed in place
        return None
    return unwrapped_of(tensor) if isinstance(tensor, torch.Tensor) else None


def unwrapped_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside of one that `torch.func.grad` follows."""
    while _functorch.is_gradtrackingtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def is_packed(node: Any, name: str) -> bool:
    """Whether a hook would have to bring back what a node has saved under this name."""
    kept = getattr(node, f"_raw_saved_{name}", None)
    return kept is not None and getattr(kept, "unpack_hook", True) is not None


def is_count(indices: torch.Tensor) -> bool:
    """Whether these are places 0, 1, 2, ... as of position embeddings."""
    last = indices.reshape(-1, indices.shape[-1])[0] if indices.dim() else indices
    return last.numel() > 1 and bool((last == torch.arange(last.numel(), device=last.device)).all())
