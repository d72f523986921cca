"""Hyperparameters that nobody has to tell: what the optimizer, its scheduler and the data loader say themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stethos.guard import attempt
from stethos.observe.session import Session

if TYPE_CHECKING:
    import torch

_MOST_OPTIMIZERS = 4
_NOT_SETTINGS = ("params", "initial_lr", "foreach", "capturable", "differentiable", "fused", "maximize")


def note_optimizer(session: Session, number: int, optimizer: Any, params: Sequence[torch.Tensor]) -> None:
    """An optimizer of a new kind makes its first step: its class, settings and number of parameters."""
    if number > _MOST_OPTIMIZERS or not optimizer.param_groups:
        return
    group = optimizer.param_groups[0]
    settings = {name: value for name, value in group.items() if name not in _NOT_SETTINGS and value is not None}
    found = {"optimizer": type(optimizer).__name__, **settings}
    if "initial_lr" in group:  # a scheduler may have begun with a small one
        found["lr"] = group["initial_lr"]
    found = {name: value.item() if hasattr(value, "item") else value for name, value in found.items()}
    found["parameters"] = sum(param.numel() for param in params)
    ending = "" if number == 1 else f"_{number}"
    session.note_config("found", {f"{name}{ending}": value for name, value in found.items()})


def note_scheduler(session: Session, scheduler: Any) -> None:
    session.note_config("found", {"scheduler": type(scheduler).__name__})


def note_loader(session: Session, iterator: Any) -> None:
    """The first pass over a training loader begins: its batch size and the number of samples."""
    if "batch_size" in session.config:
        return
    size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
    length = attempt(len, getattr(iterator, "_dataset", None))  # type: ignore[arg-type]
    session.note_config("found", {name: value for name, value in (("batch_size", size), ("dataset_size", length))
                                  if value is not None})  # fmt: skip
