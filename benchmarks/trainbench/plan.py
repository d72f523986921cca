"""How a training of the benchmark goes: one plain loop with places where a fault can be put in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import stethos
from benchmarks.trainbench.model import Data, digits, mlp

Batch = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def sgd(lr: float, **options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, **options)


def adam(lr: float, **options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.Adam(parameters, lr=lr, **options)


def adamw(lr: float, **options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=lr, **options)


def rmsprop(lr: float, **options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.RMSprop(parameters, lr=lr, **options)


_USUAL = sgd(0.1, momentum=0.9)


@dataclass(slots=True)
class Training:
    """A training under way, as faults see it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A training from start to end; what is not said is as people mostly do it.

    `prepare` changes the model before the first step, `feed` a batch, `meddle`
    what it likes between backward and step, `watched` is the model that the
    optimizer gets. `validate` is the name under which a test loss is logged.
    """

    model: Callable[[], nn.Module] = mlp
    data: Callable[[], Data] = digits
    optimizer: Callable[[Any], torch.optim.Optimizer] = _USUAL
    loss: Loss = functional.cross_entropy
    steps: int = 300
    batch: int = 32
    schedule: Callable[[torch.optim.Optimizer, int], Any] | None = None
    validate: str = ""
    validate_every: int = 20
    few: int = 0
    does_zero: bool = True
    shuffle: bool = True
    clip: float = 0.0
    accumulate: int = 1
    prepare: Callable[[nn.Module], None] | None = None
    feed: Callable[[Training, Batch], Batch] | None = None
    forward: Callable[[nn.Module, torch.Tensor], torch.Tensor] | None = None
    meddle: Callable[[Training], None] | None = None
    optimized: Callable[[nn.Module], Any] = nn.Module.parameters

    def train(self) -> None:
        inputs, targets, test_inputs, test_targets = self.data()
        if self.few:
            inputs, targets = inputs[: self.few], targets[: self.few]
        model = self.model()
        if self.prepare is not None:
            self.prepare(model)
        optimizer = self.optimizer(self.optimized(model))
        schedule = self.schedule(optimizer, self.steps) if self.schedule is not None else None
        training = Training(model, optimizer)
        batches = self._batches(inputs, targets)
        forward = self.forward or (lambda model, inputs: model(inputs))
        for step in range(self.steps):
            training.step = step
            if self.does_zero:
                optimizer.zero_grad()
            for _ in range(self.accumulate):
                batch = next(batches)
                if self.feed is not None:
                    batch = self.feed(training, batch)
                loss = self.loss(forward(model, batch[0]), batch[1]) / self.accumulate
                loss.backward()  # type: ignore[no-untyped-call]
            if self.clip:
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
            if self.meddle is not None:
                self.meddle(training)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            if self.validate and step % self.validate_every == self.validate_every - 1:
                model.eval()
                with torch.no_grad():
                    stethos.log(**{self.validate: self.loss(forward(model, test_inputs), test_targets).item()})
                model.train()

    def _batches(self, inputs: torch.Tensor, targets: torch.Tensor) -> Iterator[Batch]:
        """Endless passes over the data; a last part that is too small is left out."""
        size = min(self.batch, len(inputs))
        while True:
            order = torch.randperm(len(inputs)) if self.shuffle else torch.arange(len(inputs))
            for first in range(0, len(inputs) - size + 1, size):
                chosen = order[first : first + size]
                yield inputs[chosen], targets[chosen]
