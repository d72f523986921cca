"""What training programs share: seeds, and a fingerprint of everything a training leaves behind."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def fingerprint(*left: object) -> str:
    """A sha256 of modules, optimizers, tensors and numbers, and of all random states as they are now."""
    digest = hashlib.sha256()
    for part in (*left, torch.get_rng_state(), np.random.get_state(), random.getstate()):
        for leaf in _leaves(part):
            digest.update(leaf)
    return digest.hexdigest()


def _leaves(value: Any) -> Iterator[bytes]:
    if isinstance(value, nn.Module | torch.optim.Optimizer):
        yield from _leaves(value.state_dict())
    elif isinstance(value, torch.Tensor):
        if hasattr(value, "to_local"):
            value = value.to_local()
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        plain = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        if not plain.is_meta:
            yield plain.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    elif isinstance(value, np.ndarray):
        yield value.tobytes()
    elif isinstance(value, Mapping):
        for key in value:
            yield str(key).encode()
            yield from _leaves(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield repr(value).encode()
