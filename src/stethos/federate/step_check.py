"""What happens around a turn's first two steps: to some weights, to their gradients, and by the optimizer itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stethos.observe.layer_name import parameters_of

Vector = npt.NDArray[np.float64]
_SOME, _FEW = 16, 64  # parameters, and elements of each, that are read
_TURNED = 0.99
_EXACT = 1e-3


class StepCheck:
    """What happens to some weights between the turn's first two steps, to their gradients before the second, and in it.

    Nothing but the optimizer is to move weights, and nothing to turn a gradient, unless all clients do it. How far a
    step goes per gradient and learning rate, and where, tells decay, clipping and momentum that others do not have.
    """

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self._weights: list[torch.Tensor] = []
        self._optimizer = 0
        self._start = self._end = self._gradients = self._used = np.zeros(0)

    def before_step(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        if steps == 0 and not self._optimizer:
            self._optimizer, self._weights = id(optimizer), _some_of(parameters_of(optimizer))
            self._start = _few(self._weights)
        elif steps == 1 and id(optimizer) == self._optimizer:
            moved, way = _few(self._weights) - self._end, self._end - self._start
            length = float(np.linalg.norm(way))
            if length > 0 and (by := short(float(np.linalg.norm(moved)) / length)):
                self.facts["between"] = by
            self._used = _few(self._weights, of_gradients=True)
            turned = _least_cosine(self._gradients, self._used, _sizes(self._weights))
            if turned is not None and turned < _TURNED:
                self.facts["turned"] = short(turned)
            self._end = self._end + moved  # where the second step begins

    def after_step(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        if id(optimizer) != self._optimizer or steps > 1:
            return
        before, self._end = self._end, _few(self._weights)
        if steps == 1 and len(self._used):
            self.facts |= _step_facts(self._end - before, self._used, self._gradients)

    def after_backward(self, steps: int) -> None:
        if steps == 1 and self._weights:
            self._gradients = _few(self._weights, of_gradients=True)


@np.errstate(over="ignore", invalid="ignore")
def _step_facts(step: Vector, used: Vector, computed: Vector) -> dict[str, Any]:
    """The size of a gradient, its share that the optimizer was given, and a step's length and direction by it."""
    lengths = [float(np.linalg.norm(one)) for one in (step, used, computed)]
    if not all(0 < one < math.inf for one in lengths):
        return {}
    facts: dict[str, Any] = {"gradient": short(lengths[2], 3), "stretch": short(lengths[0] / lengths[1], 4)}
    downhill = -float(step @ used) / lengths[0] / lengths[1]
    given = lengths[1] / lengths[2] if computed.shape == used.shape else 1.0
    for name, value in (("downhill", downhill), ("given", given)):  # 1 unless it is said
        if abs(value - 1) > _EXACT:
            facts[name] = short(value, 4)
    return facts


def _some_of(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Some parameters, spread over the model, the largest among them."""
    some = list(parameters)[:: -(-len(parameters) // _SOME) or 1]
    largest = max(parameters, key=torch.numel, default=None)
    return some if largest is None or any(one is largest for one in some) else [*some, largest]


def _sizes(parameters: Sequence[torch.Tensor]) -> list[int]:
    return [min(one.numel(), _FEW) for one in parameters]


def _few(parameters: Sequence[torch.Tensor], *, of_gradients: bool = False) -> Vector:
    """A few elements of each, in one read; of a gradient that is not there, zeros."""
    parts = []
    for one, size in zip(parameters, _sizes(parameters), strict=True):
        tensor = one.grad if of_gradients else one
        if tensor is None or tensor.is_sparse:
            tensor = torch.zeros_like(one)
        parts.append(tensor.detach().reshape(-1)[:: max(1, one.numel() // max(size, 1))][:size].float())
    return torch.cat(parts).cpu().numpy().astype(np.float64) if parts else np.zeros(0)


def _least_cosine(before: Vector, after: Vector, sizes: Sequence[int]) -> float | None:
    """Of each parameter the cosine of its gradient with the one that it had before: the least."""
    if before.shape != after.shape or not np.isfinite(before).all() or not np.isfinite(after).all():
        return None
    least = 1.0
    for old, new in zip(*(np.split(one, np.cumsum(sizes)[:-1]) for one in (before, after)), strict=True):
        lengths = float(np.linalg.norm(old)) * float(np.linalg.norm(new))
        if lengths > 0:
            least = min(least, float(old @ new) / lengths)
    return least


def short(value: float, digits: int = 5) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
