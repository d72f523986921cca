"""A client's model in the middle of its local training: trained again, and stopped after a step."""

from __future__ import annotations

from typing import Any

from stethos.errors import ReplayError
from stethos.replay.history import Past, State
from stethos.replay.trainer import Trainer


class _EnoughError(BaseException):
    """Leaves the training; no `except Exception` of the trainer's stops it."""


def model_after_step(trainer: Trainer, round: int, client: str, past: Past, step: int) -> tuple[State, State]:
    """The client's weights after a local step, and the gradients of that step, by layer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    names = [name for name, value in past(round - 1).items() if value.is_floating_point()]
    shapes = [past(round - 1)[name].shape for name in names]
    found: dict[str, State] = {}
    count = 0

    def tensors_of(optimizer: Any) -> dict[str, Any]:
        own = [one for group in optimizer.param_groups for one in group["params"]]
        return _named(names, shapes, own)

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if count + 1 == step:
            own = tensors_of(optimizer)
            found["gradients"] = {name: one.grad.detach().clone() for name, one in own.items() if one.grad is not None}

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal count
        count += 1
        if count == step:
            found["weights"] = {name: one.detach().clone() for name, one in tensors_of(optimizer).items()}
            raise _EnoughError

    hooks = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
    try:
        trainer.train(round, [client], past)
    except _EnoughError:
        return found["weights"], found.get("gradients", {})
    finally:
        for hook in hooks:
            hook.remove()
    if not count:
        raise ReplayError("the training has no optimizer steps to stop at", hint="the lab's engine 'loop' has them")
    raise ReplayError(f"client {client!r} takes {count} steps in round {round}, not {step}")


def _named(names: list[str], shapes: list[Any], tensors: list[Any]) -> dict[str, Any]:
    """Parameters by the names of layers: both are in the order of the model, and buffers have none."""
    found: dict[str, Any] = {}
    rest = iter(zip(names, shapes, strict=True))
    for tensor in tensors:
        for name, shape in rest:
            if shape == tensor.shape:
                found[name] = tensor
                break
    return found
