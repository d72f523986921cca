"""What the optimizers of a program are set to do, and how much of the model they may change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_DECOUPLED = ("AdamW", "NAdamW", "RAdamW", "Lion", "SGD")  # their decay of a step is rate times decay


def decay_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The largest weight decay of its groups: as a share of a weight per step where that can be told."""
    found: dict[str, Any] = {}
    for group in optimizer.param_groups:
        decay, rate = group.get("weight_decay"), group.get("lr")
        if not isinstance(decay, float | int) or not isinstance(rate, float | int) or decay <= 0:
            continue
        name = type(optimizer).__name__
        is_share = name in _DECOUPLED or bool(group.get("decoupled_weight_decay"))
        per_step = float(decay * rate) if is_share else 0.0
        if per_step >= found.get("decay_per_step", 0.0) and decay >= found.get("weight_decay", 0.0):
            found = {"weight_decay": float(decay), "decay_per_step": per_step}
    return found


def frozen_share(roots: Iterable[torch.nn.Module]) -> float:
    """The share of a model's weights that require no gradient."""
    counts = [(parameter.numel(), parameter.requires_grad) for root in roots for parameter in root.parameters()]
    total = sum(count for count, _ in counts)
    return sum(count for count, is_trained in counts if not is_trained) / total if total else 0.0
