"""The models of the lab, initialised from a generator of their own, or the caller's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stethos.errors import UsageError
from stethos.lab.choice import choose
from stethos.lab.data import Data
from stethos.lab.seed import isolated, torch_generator

Factory = Callable[[], nn.Module]


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer without values yet: on the meta device its own initialisation draws no random numbers."""
    return nn.Linear(inputs, outputs, device="meta", dtype=torch.float32).to_empty(device="cpu")


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, device="meta", dtype=torch.float32).to_empty(device="cpu")


class Logistic(nn.Module):
    """Logistic regression on the flattened input."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.out = _linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.flatten(1))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """One hidden layer of rectified units."""

    def __init__(self, features: int, classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.hidden = _linear(features, hidden)
        self.out = _linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(x.flatten(1))))  # type: ignore[no-any-return]


class CNN(nn.Module):
    """Two small convolutions and a linear layer, for square images of one channel."""

    def __init__(self, side: int, classes: int) -> None:
        super().__init__()
        self.side = side
        self.conv1 = _convolution(1, 8)
        self.conv2 = _convolution(8, 16)
        self.out = _linear(16 * (side // 4) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), 1, self.side, self.side)
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.out(x.flatten(1))  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build the model, in this process or in another: the same bits each time."""

    choice: str | Factory
    features: int
    classes: int
    seed: int

    @property
    def is_callers(self) -> bool:
        """Whether it is not ours: then it may draw random numbers, as dropout does."""
        return not isinstance(self.choice, str)

    def build(self) -> nn.Module:
        if isinstance(self.choice, str):
            model = choose("model", self.choice, MODELS)(self.features, self.classes)
            _initialise(model, torch_generator(self.seed, "model"))
            return model
        with isolated(self.seed, "model"):
            model = self.choice()
        if not isinstance(model, nn.Module):
            raise UsageError(f"the model is a {type(model).__name__}", hint="model=factory returns a torch.nn.Module")
        return model


def recipe_of(choice: str | Factory, data: Data, seed: int) -> Recipe:
    """How to build the model that was chosen for these data; UsageError if there is no such."""
    if isinstance(choice, str):
        choose("model", choice, MODELS)
    elif isinstance(choice, nn.Module) or not callable(choice):
        raise UsageError(
            f"model is a {type(choice).__name__}",
            hint=f"give {', '.join(MODELS)}, or a function without arguments that builds the model",
        )
    return Recipe(choice, math.prod(data.train_x.shape[1:]), data.classes, seed)


def _cnn(features: int, classes: int) -> nn.Module:
    side = math.isqrt(features)
    if side * side != features or side < 4:
        raise UsageError(
            f"model 'cnn' needs square images of at least 4 x 4 pixels, not {features} features", hint="use model='mlp'"
        )
    return CNN(side, classes)


def _initialise(model: nn.Module, generator: torch.Generator) -> None:
    """torch's own default for linear and convolution layers, from our generator."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                bound = 1 / math.sqrt(module.weight[0].numel())
                for parameter in module.parameters():
                    parameter.uniform_(-bound, bound, generator=generator)


MODELS: dict[str, Callable[[int, int], nn.Module]] = {"logistic": Logistic, "mlp": MLP, "cnn": _cnn}
