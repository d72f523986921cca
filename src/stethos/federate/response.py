"""How a client's model answers inputs made from the global model: a probe that needs no data.

For each class, random inputs are changed by gradient steps until the global
model takes them for that class. Then each client's weights answer them, and
the table says how far each answer (column) has moved for each class of inputs
(row), compared with the mean answer. A flip of labels shows as one large pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.func import functional_call

from stethos.federate.structure import State, Structure

Array = npt.NDArray[np.float64]
_PER_CLASS = 4
_STEPS = 60
_RATE = 0.1
_MOST_CLASSES = 64


class Responder:
    """Makes the inputs anew for every round's global model; draws from a generator of its own."""

    def __init__(self, model: torch.nn.Module, shape: Sequence[int], seed: int = 0) -> None:
        self._model = model
        self._shape = tuple(shape)
        self._seed = seed
        self._inputs: torch.Tensor | None = None
        self._labels: torch.Tensor | None = None
        self._base: torch.Tensor | None = None

    def prepare(self, state: State) -> None:
        """Make inputs that this global model takes for each of its classes."""
        weights = self._weights(state)
        generator = torch.Generator().manual_seed(self._seed)
        with torch.no_grad():
            classes = int(self._answer(weights, torch.zeros(1, *self._shape)).shape[-1])
        if not 2 <= classes <= _MOST_CLASSES:
            self._inputs = None
            return
        labels = torch.arange(classes).repeat_interleave(_PER_CLASS)
        inputs = torch.randn(len(labels), *self._shape, generator=generator)
        with torch.enable_grad():
            for _ in range(_STEPS):
                inputs.requires_grad_(True)
                loss = torch.nn.functional.cross_entropy(self._answer(weights, inputs), labels, reduction="sum")
                (slope,) = torch.autograd.grad(loss, inputs)
                length = slope.flatten(1).norm(dim=1).clamp_min(1e-12).view(-1, *[1] * len(self._shape))
                inputs = (inputs - _RATE * slope / length).detach()
        with torch.no_grad():
            self._base = self._answer(weights, inputs)
        self._inputs, self._labels = inputs, labels

    def response(self, state: State, base: State | None, structure: Structure) -> Array | None:
        """The table of a client; `base` is added where the update is a change. None if it cannot be told."""
        if self._inputs is None or self._base is None:
            return None
        values = dict(zip((layer.name for layer in structure.layers), structure.values_of(state, ""), strict=True))
        weights = self._weights({name: value for name, value in values.items() if value is not None}, base)
        with torch.no_grad():
            moved = self._answer(weights, self._inputs) - self._base
        moved = moved - moved.mean(1, keepdim=True)
        table: Array = moved.view(-1, _PER_CLASS, moved.shape[1]).mean(1).double().numpy()
        return table

    def _answer(self, weights: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        was_training = self._model.training
        self._model.eval()
        try:
            answer: torch.Tensor = functional_call(self._model, weights, (inputs,))
        finally:
            self._model.train(was_training)
        return answer.float()

    def _weights(self, state: Any, base: State | None = None) -> dict[str, torch.Tensor]:
        """Floating-point entries as tensors of their own on the host; what is missing is the model's own."""
        own = {name: value.detach().cpu() for name, value in self._model.state_dict().items()}
        for name, value in dict(state).items():
            if name in own and own[name].is_floating_point():
                tensor = value.detach().cpu() if isinstance(value, torch.Tensor) else torch.as_tensor(np.asarray(value))
                start = dict(base)[name].detach().cpu() if base is not None else 0
                own[name] = (tensor + start).to(own[name].dtype)
        return own
