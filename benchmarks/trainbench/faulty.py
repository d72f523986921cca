"""Faults of ordinary training and the detectors that count as having found each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import stethos
from benchmarks.trainbench.healthy import average, federated, federated_loop, parted
from benchmarks.trainbench.model import Data, Transformer, cnn, diabetes, digits, images, mlp, tokens
from benchmarks.trainbench.plan import Batch, Plan, Training, adam, sgd


@dataclass(frozen=True, slots=True)
class Fault:
    """A training with something wrong; `names` are the detectors that count as a hit."""

    train: Callable[[], None]
    names: tuple[str, ...]


def from_step(first: int, change: Callable[[torch.Tensor, torch.Tensor], Batch], last: int = 10**9) -> Any:
    """Change the batches from a step on."""

    def feed(training: Training, batch: Batch) -> Batch:
        return change(*batch) if first <= training.step < last else batch

    return feed


def one_nan(inputs: torch.Tensor, targets: torch.Tensor) -> Batch:
    inputs = inputs.clone()
    inputs.view(-1)[0] = torch.nan
    return inputs, targets


def _rate(first: int, lr: float) -> Callable[[Training], None]:
    def meddle(training: Training) -> None:
        if training.step == first:
            training.optimizer.param_groups[0]["lr"] = lr

    return meddle


def _break_weight(training: Training) -> None:
    if training.step == 150:
        with torch.no_grad():
            next(training.model.parameters()).view(-1)[3] = torch.inf


def _scale_gradients(training: Training) -> None:
    """A loss scale that is never taken back."""
    if training.step >= 150:
        for parameter in training.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1e4)


def _grow(training: Training) -> None:
    """Weight decay with the wrong sign."""
    for parameter in training.model.parameters():
        if parameter.grad is not None:
            parameter.grad.sub_(parameter.detach(), alpha=0.2)


def _each(change: Callable[[torch.Tensor], Any]) -> Callable[[nn.Module], None]:
    """Set every weight matrix anew."""

    def prepare(model: nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    change(parameter)

    return prepare


def _dead_start(model: nn.Module) -> None:
    nn.init.constant_(model[0].bias, -20.0)  # type: ignore[index]


def _far_away(model: nn.Module) -> None:
    nn.init.normal_(model.weight)  # type: ignore[arg-type]


def _sorted_digits() -> Data:
    inputs, targets, test_inputs, test_targets = digits()
    order = targets.argsort(stable=True)
    return inputs[order], targets[order], test_inputs, test_targets


def _scaled_loss() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A loss that is multiplied by 1,024 from the 150th step on."""
    calls = 0

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return functional.cross_entropy(output, target) * (1024 if calls > 150 else 1)

    return loss


def _log_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The logarithm of a probability that can be exactly 0."""
    return functional.nll_loss((output * 30).softmax(1).log(), target)


def _root_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A square root whose slope at 0 is infinite."""
    wrong = (1 - functional.one_hot(target, 10)) * output.clamp(min=0)
    return functional.cross_entropy(output, target) + wrong.sqrt().mean()


def _cut(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return model[2:](model[:2](inputs).detach())  # type: ignore[index,no-any-return]


class _SideBranch(nn.Module):
    """A branch that is switched off by a factor of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side = mlp(64), mlp(64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.main(inputs) + 0.0 * self.side(inputs)  # type: ignore[no-any-return]


class _NoActivation(nn.Module):
    """Twelve layers with a square between them: gradients grow with depth."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
        self.head = nn.Linear(64, 10)
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs)
        return self.head(inputs)  # type: ignore[no-any-return]


def _two_rates(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    first, *rest = parameters
    return torch.optim.SGD([{"params": rest, "lr": 0.1}, {"params": [first], "lr": 60.0}])


def copy_of(model: nn.Module) -> Iterator[nn.Parameter]:
    return copy.deepcopy(model).parameters()


def _shuffled(inputs: torch.Tensor, targets: torch.Tensor) -> Batch:
    return inputs, targets[torch.randperm(len(targets))]


def _half_wrong() -> Data:
    """Digits of which every other has a random label."""
    inputs, targets, test_inputs, test_targets = digits()
    targets = targets.clone()
    targets[::2] = torch.randint(0, 10, targets[::2].shape)
    return inputs, targets, test_inputs, test_targets


def nan_client() -> None:
    """One client's data have a NaN; nobody tells us of clients."""
    clients, model = parted(), mlp(64)
    clients[3][0][5, 7] = torch.nan
    for _ in range(12):
        locals_ = []
        for client in torch.randperm(8)[:5].tolist():
            local = copy.deepcopy(model)
            optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
            inputs, targets = clients[client]
            for chosen in torch.randperm(len(inputs)).split(32):
                optimizer.zero_grad()
                functional.cross_entropy(local(inputs[chosen]), targets[chosen]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            locals_.append(local)
        average(locals_, model)


def odd_metric() -> None:
    """A number the user logs jumps to another level; the training is fine."""
    generator = torch.Generator().manual_seed(torch.initial_seed())

    def feed(training: Training, batch: Batch) -> Batch:
        level = 900.0 if training.step < 180 else 300.0
        stethos.log(samples_per_s=level + 20 * torch.randn((), generator=generator).item())
        return batch

    Plan(feed=feed).train()


_NON_FINITE = ("non-finite-loss", "non-finite-gradients", "non-finite-weights")
TOO_FAST = ("learning-rate-too-high", "divergence")
_PLAIN = Plan(optimizer=sgd(0.1))

FAULTS: dict[str, Fault] = {
    "NaN in the inputs": Fault(replace(_PLAIN, feed=from_step(100, one_nan, 101)).train, ("non-finite-loss",)),
    "NaN in a client's data": Fault(nan_client, ("non-finite-loss",)),
    "logarithm of 0": Fault(replace(_PLAIN, loss=_log_loss, optimizer=sgd(0.5)).train, ("non-finite-loss",)),
    "slope of a root at 0": Fault(replace(_PLAIN, loss=_root_loss).train,
                                  ("non-finite-gradients", "non-finite-weights")),
    "infinite weight": Fault(replace(_PLAIN, meddle=_break_weight).train, ("non-finite-weights", "non-finite-loss")),
    "learning rate 50": Fault(replace(_PLAIN, optimizer=sgd(50.0)).train, TOO_FAST),
    "learning rate 3 with momentum, CNN": Fault(Plan(cnn, images, sgd(3.0, momentum=0.9), steps=200).train, TOO_FAST),
    "learning rate 1 with Adam": Fault(Plan(lambda: mlp(64, 64), optimizer=adam(1.0)).train, TOO_FAST),
    "learning rate 0.5 with Adam, transformer": Fault(Plan(Transformer, tokens, adam(0.5), steps=200).train,
                                                      (*TOO_FAST, "plateau")),
    "learning rate 50, federated loop": Fault(lambda: federated_loop(lr=50.0, momentum=0.0), TOO_FAST),
    "learning rate 30, federated": Fault(lambda: federated(lr=30.0, momentum=0.0), TOO_FAST),
    "learning rate 1e-6": Fault(replace(_PLAIN, optimizer=sgd(1e-6)).train, ("learning-rate-too-low",)),
    "learning rate 1e-8 with Adam": Fault(Plan(cnn, images, adam(1e-8), steps=200).train, ("learning-rate-too-low",)),
    "learning rate 0": Fault(replace(_PLAIN, optimizer=sgd(0.0)).train, ("learning-rate-too-low",)),
    "learning rate 3e-4 with SGD": Fault(replace(_PLAIN, optimizer=sgd(3e-4), steps=600).train,
                                         ("slow-progress", "learning-rate-too-low")),
    "learning rate raised half-way": Fault(replace(_PLAIN, meddle=_rate(150, 40.0)).train,
                                           (*TOO_FAST, "series-anomaly")),
    "swinging by strong momentum": Fault(Plan(lambda: nn.Linear(10, 1), diabetes, sgd(0.05, momentum=0.999),
                                              functional.mse_loss, 400, 2000, prepare=_far_away).train,
                                         ("oscillation",)),
    "swinging, data sorted by label": Fault(Plan(data=_sorted_digits, optimizer=sgd(0.2), shuffle=False,
                                                 steps=600).train, ("oscillation",)),
    "gradients scaled up": Fault(replace(_PLAIN, optimizer=adam(1e-3), meddle=_scale_gradients).train,
                                 ("exploding-gradients",)),
    "gradients grow with depth": Fault(Plan(_NoActivation, optimizer=sgd(1e-3)).train,
                                       ("exploding-gradients", "poor-initialisation")),
    "loss scale left in": Fault(Plan(cnn, images, adam(1e-3), _scaled_loss(), steps=250).train,
                                ("exploding-gradients", "series-anomaly")),
    "ten sigmoid layers": Fault(Plan(lambda: mlp(*[48] * 10, act=nn.Sigmoid)).train, ("vanishing-gradients",)),
    "twelve tanh layers, small weights": Fault(
        Plan(lambda: mlp(*[48] * 12, act=nn.Tanh), optimizer=sgd(0.1),
             prepare=_each(lambda weight: weight.mul_(0.3))).train, ("vanishing-gradients", "poor-initialisation")),
    "weight decay with the wrong sign": Fault(Plan(optimizer=sgd(0.1), meddle=_grow).train, ("weight-explosion",)),
    "dead from the start": Fault(Plan(optimizer=sgd(0.1), prepare=_dead_start).train, ("dead-units",)),
    "killed by one large step": Fault(Plan(lambda: mlp(64, 64), optimizer=sgd(0.1), feed=from_step(
        40, lambda inputs, targets: (inputs * 300, targets), 42)).train, ("dead-units", "series-anomaly")),
    "inputs not scaled, tanh": Fault(Plan(lambda: mlp(64, 64, act=nn.Tanh), optimizer=sgd(0.01), feed=from_step(
        0, lambda inputs, targets: (inputs * 2000, targets))).train, ("saturated-units",)),
    "sigmoid with weights of 10": Fault(Plan(lambda: mlp(64, 64, act=nn.Sigmoid), optimizer=sgd(0.1), prepare=_each(
        lambda weight: nn.init.normal_(weight, std=10))).train, ("saturated-units", "poor-initialisation")),
    "graph cut by detach": Fault(Plan(forward=_cut, optimizer=sgd(0.1)).train, ("frozen-layers",)),
    "branch times 0": Fault(Plan(_SideBranch, optimizer=sgd(0.1)).train, ("frozen-layers",)),
    "all weights equal": Fault(Plan(lambda: mlp(64, 64), optimizer=sgd(0.1), prepare=_each(
        lambda weight: weight.fill_(0.05))).train, ("poor-initialisation",)),
    "weights of 3": Fault(Plan(lambda: mlp(64, 64), optimizer=sgd(1e-4), prepare=_each(
        lambda weight: nn.init.normal_(weight, std=3))).train, ("poor-initialisation",)),
    "weights of 1e-4": Fault(Plan(lambda: mlp(64, 64), optimizer=sgd(0.1), prepare=_each(
        lambda weight: nn.init.normal_(weight, std=1e-4))).train, ("poor-initialisation",)),
    "one layer's rate 600 times too high": Fault(Plan(optimizer=_two_rates).train,
                                                 ("update-to-weight-ratio", "learning-rate-too-high")),
    "eighty samples": Fault(Plan(lambda: mlp(128, 128, inputs=10, outputs=1), diabetes, adam(3e-3),
                                 functional.mse_loss, few=80, steps=600, validate="val_loss").train, ("overfitting",)),
    "wrong labels learned by heart": Fault(Plan(lambda: mlp(256), _half_wrong, adam(3e-3), few=300, steps=600,
                                                validate="val/loss").train, ("overfitting",)),
    "optimizer of a copy": Fault(Plan(optimized=copy_of).train, ("detached-loss",)),
    "loss times 0": Fault(Plan(loss=lambda output, target: functional.cross_entropy(output, target) * 0 + 2).train,
                          ("detached-loss",)),
    "gradients not zeroed, SGD": Fault(Plan(optimizer=sgd(0.01), does_zero=False).train, ("gradients-not-zeroed",)),
    "gradients not zeroed, Adam": Fault(Plan(cnn, images, adam(1e-3), does_zero=False, steps=200).train,
                                        ("gradients-not-zeroed",)),
    "labels shuffled": Fault(Plan(optimizer=adam(1e-3), feed=from_step(0, _shuffled)).train, ("plateau",)),
    "inputs all 0": Fault(Plan(optimizer=sgd(0.1), feed=from_step(
        0, lambda inputs, targets: (inputs * 0, targets))).train, ("plateau", "dead-units")),
    "one broken batch": Fault(Plan(optimizer=sgd(0.01), feed=from_step(
        200, lambda inputs, targets: (inputs * 100, targets), 201)).train, ("series-anomaly",)),
    "other labels half-way": Fault(Plan(optimizer=sgd(0.02), feed=from_step(
        200, lambda inputs, targets: (inputs, targets[torch.randperm(len(targets))])), steps=400).train,
                                   ("series-anomaly", "divergence")),
    "batches of one half-way": Fault(Plan(optimizer=adam(3e-4), batch=128, feed=from_step(
        200, lambda inputs, targets: (inputs[:1], targets[:1])), steps=400).train, ("series-anomaly",)),
    "logged number changes level": Fault(odd_metric, ("series-anomaly",)),
}  # fmt: skip
