"""What the optimizers of a program are set to do, and how much of the model they may change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from typing import Any

import torch

from stethos.observe.batch_print import is_readable

_WITH_STATE = (
    torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.RMSprop,
    torch.optim.Adadelta,
)  # fmt: skip
_LEAST_LAYERS = 3
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


def settings_of(optimizer: torch.optim.Optimizer, reached: Container[int]) -> dict[str, Any]:
    """Settings that are easily confused, and frozen parameters that it goes on to move by gradients of before.

    `reached` are the ids of the parameters behind the loss: an optimizer of which none is among them waits for its turn
    and moves nothing, as that of a critic does while its generator learns.
    """
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    betas = group.get("betas")
    found: dict[str, Any] = {}
    if isinstance(betas, tuple | list) and len(betas) == 2 and all(isinstance(one, float) for one in betas):
        found["betas"] = list(betas)
    for name in ("eps", "momentum"):
        if isinstance(group.get(name), float | int):
            found[name] = float(group[name])
    if group.get("maximize"):
        found["maximize"] = True
    held = [one for each in optimizer.param_groups for one in each["params"]]
    frozen = sum(not one.requires_grad and one.grad is not None for one in held)
    if frozen and any(id(one) in reached for one in held):
        found["frozen_with_gradient"] = frozen
    places = Counter(one.data_ptr() for one in {id(one): one for one in held}.values() if is_readable(one))
    twice = sum(count > 1 for place, count in places.items() if place)
    return found | ({"same_memory": twice} if twice else {})


def has_learned_nothing(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer that keeps numbers for each parameter has kept none: no parameter ever had a gradient."""
    return type(optimizer) in _WITH_STATE and not optimizer.state


def frozen_head(root: torch.nn.Module, reached: Container[int]) -> str:
    """The name of a model's last layer where it is all that is frozen, and the others learn; else nothing."""
    layers = [(name, list(one.parameters(recurse=False))) for name, one in root.named_modules()]
    layers = [(name, own) for name, own in layers if own]
    if len(layers) < _LEAST_LAYERS:
        return ""
    (name, last), others = layers[-1], [one for _, own in layers[:-1] for one in own]
    is_last = not any(one.requires_grad for one in last) and all(one.requires_grad for one in others)
    is_linear = any(one.dim() == 2 for one in last) and not set(map(id, last)) & set(map(id, others))
    return name if is_last and is_linear and any(id(one) in reached for one in others) else ""


def frozen_share(roots: Iterable[torch.nn.Module]) -> float:
    """The share of a model's weights that require no gradient."""
    counts = [(parameter.numel(), parameter.requires_grad) for root in roots for parameter in root.parameters()]
    total = sum(count for count, _ in counts)
    return sum(count for count, is_trained in counts if not is_trained) / total if total else 0.0
