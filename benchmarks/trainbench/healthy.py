"""Trainings with nothing wrong: whoever accuses one of them raises a false alarm."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler as schedules

import stethos
from benchmarks.trainbench.model import (
    Bag,
    Recurrent,
    Residual,
    Transformer,
    cnn,
    diabetes,
    digits,
    images,
    logistic,
    mlp,
    raw_diabetes,
    rows,
    tokens,
    wave,
)  # fmt: skip
from benchmarks.trainbench.plan import Plan, adam, adamw, rmsprop, sgd


def _warm_up(optimizer: torch.optim.Optimizer, steps: int) -> schedules.LambdaLR:
    return schedules.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 40) * 0.5 * (1 + math.cos(math.pi * step / steps))
    )


def _cosine(optimizer: torch.optim.Optimizer, steps: int) -> schedules.CosineAnnealingLR:
    return schedules.CosineAnnealingLR(optimizer, steps)


def _one_cycle(optimizer: torch.optim.Optimizer, steps: int) -> schedules.OneCycleLR:
    return schedules.OneCycleLR(optimizer, max_lr=0.3, total_steps=steps + 1)


def _restarts(optimizer: torch.optim.Optimizer, steps: int) -> schedules.CosineAnnealingWarmRestarts:
    return schedules.CosineAnnealingWarmRestarts(optimizer, steps // 4)


def _freeze_first(model: nn.Module) -> None:
    for parameter in list(model.parameters())[:2]:
        parameter.requires_grad_(False)


def _zero_start(model: nn.Module) -> None:
    for parameter in model.parameters():
        nn.init.zeros_(parameter)


def _likelihood(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of a normal distribution: falls below zero."""
    mean, log_std = output[:, :1], output[:, 1:].clamp(-4, 4)
    return (log_std + 0.5 * ((target - mean) / log_std.exp()) ** 2).mean()


def resume() -> None:
    """Goes on with a model that is trained already, at a small rate."""
    inputs, targets, _, _ = digits()
    model = mlp(64)
    parameters = list(model.parameters())
    for _ in range(400):  # by hand, so that this part is not recorded
        chosen = torch.randint(0, len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[chosen]), targets[chosen])
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter -= 0.5 * gradient
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(300):
        chosen = torch.randint(0, len(inputs), (32,))
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def adversarial() -> None:
    """Two models against each other: their losses need not fall."""
    maker, judge = mlp(32, inputs=4, outputs=2), mlp(32, inputs=2, outputs=1)
    make = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.999))
    assess = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999))
    binary = functional.binary_cross_entropy_with_logits
    for _ in range(250):
        angle = torch.rand(64) * 2 * math.pi
        real, made = torch.stack([angle.cos(), angle.sin()], 1), maker(torch.randn(64, 4))
        assess.zero_grad()
        loss = binary(judge(real), torch.ones(64, 1)) + binary(judge(made.detach()), torch.zeros(64, 1))
        loss.backward()  # type: ignore[no-untyped-call]
        assess.step()
        make.zero_grad()
        binary(judge(made), torch.ones(64, 1)).backward()  # type: ignore[no-untyped-call]
        make.step()


def closure() -> None:
    """LBFGS evaluates the loss many times a step."""
    inputs, targets, _, _ = digits()
    model = logistic()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)

    def evaluate() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets) + 1e-3 * model.weight.square().sum()  # type: ignore[union-attr,operator]
        loss.backward()
        return loss

    for _ in range(40):
        optimizer.step(evaluate)


def parted(skew: bool = False) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The digits of eight clients; with skew each has few of the classes."""
    inputs, targets, _, _ = digits()
    order = targets.argsort() if skew else torch.randperm(len(targets))
    return [(inputs[part], targets[part]) for part in order.chunk(8)]


def _turn(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], lr: float, momentum: float) -> nn.Module:
    local, (inputs, targets) = copy.deepcopy(model), data
    optimizer = torch.optim.SGD(local.parameters(), lr=lr, momentum=momentum)
    for chosen in torch.randperm(len(inputs)).split(32):
        optimizer.zero_grad()
        functional.cross_entropy(local(inputs[chosen]), targets[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return local


def average(locals_: list[nn.Module], model: nn.Module) -> None:
    states = [local.state_dict() for local in locals_]
    model.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})


def federated_loop(lr: float = 0.1, rounds: int = 20, skew: bool = False, momentum: float = 0.9) -> None:
    """A loop over clients as in tutorials, which tells us nothing of rounds: an optimizer for each turn."""
    clients, model = parted(skew), mlp(64)
    for _ in range(rounds):
        chosen = torch.randperm(len(clients))[:5].tolist()
        average([_turn(model, clients[client], lr, momentum) for client in chosen], model)


def federated(lr: float = 0.1, rounds: int = 15, skew: bool = False, momentum: float = 0.9) -> None:
    """The same, told round by round."""
    clients, model = parted(skew), mlp(64)
    _, _, inputs, targets = digits()
    with stethos.federation("digits", model=model) as federation:
        for round_ in federation.rounds(rounds):
            locals_ = []
            for client in torch.randperm(len(clients))[:5].tolist():
                with round_.client(f"c{client}") as site:
                    locals_.append(_turn(model, clients[client], lr, momentum))
                    site.update(locals_[-1].state_dict(), samples=len(clients[client][1]))
            average(locals_, model)
            with torch.no_grad():
                round_.evaluate(loss=functional.cross_entropy(model(inputs), targets).item())


def folds() -> None:
    """Five models one after the other, each trained from its start."""
    for _ in range(5):
        Plan(steps=80).train()


HEALTHY: dict[str, Callable[[], None]] = {
    "logistic, SGD": Plan(logistic, optimizer=sgd(0.5)).train,
    "logistic, from zero": Plan(logistic, optimizer=sgd(0.5), prepare=_zero_start).train,
    "logistic, all data at once": Plan(logistic, optimizer=sgd(0.5), batch=2000).train,
    "logistic, LBFGS": closure,
    "MLP, SGD": Plan(optimizer=sgd(0.2)).train,
    "MLP, SGD, batch 1": Plan(optimizer=sgd(0.02), batch=1, steps=800).train,
    "MLP, momentum": Plan(validate="val_loss").train,
    "MLP, Nesterov, batch 8": Plan(optimizer=sgd(0.02, momentum=0.9, nesterov=True), batch=8, steps=500).train,
    "MLP, Adam": Plan(optimizer=adam(1e-3), validate="val/loss").train,
    "MLP, Adam, long": Plan(optimizer=adam(3e-3), steps=1200, validate="val_loss", validate_every=50).train,
    "MLP, AdamW, cosine": Plan(mlp, optimizer=adamw(3e-3), schedule=_cosine).train,
    "MLP, RMSprop": Plan(optimizer=rmsprop(1e-3)).train,
    "MLP, dropout": Plan(lambda: mlp(128, dropout=0.5), optimizer=adam(2e-3), validate="valid_loss").train,
    "MLP, batch norm": Plan(lambda: mlp(64, 64, norm=True), optimizer=sgd(0.1)).train,
    "MLP, five tanh layers": Plan(lambda: mlp(48, 48, 48, 48, 48, act=nn.Tanh), optimizer=adam(2e-3)).train,
    "MLP, six ReLU layers": Plan(lambda: mlp(64, 64, 64, 64, 64, 64), optimizer=adam(1e-3), steps=400).train,
    "MLP, GELU, one cycle": Plan(lambda: mlp(64, act=nn.GELU), optimizer=sgd(0.1, momentum=0.9),
                                 schedule=_one_cycle).train,
    "MLP, warm restarts": Plan(optimizer=sgd(0.2, momentum=0.9), schedule=_restarts, steps=400).train,
    "MLP, fixed order": Plan(optimizer=sgd(0.1), shuffle=False, batch=128, steps=250).train,
    "MLP, clipped, accumulated": Plan(optimizer=sgd(0.1, momentum=0.9), clip=1.0, accumulate=4, batch=16).train,
    "MLP, label smoothing": Plan(loss=nn.CrossEntropyLoss(label_smoothing=0.1), optimizer=adamw(3e-3)).train,
    "MLP, summed loss": Plan(loss=nn.CrossEntropyLoss(reduction="sum"), optimizer=sgd(0.003)).train,
    "MLP, first layer frozen": Plan(prepare=_freeze_first, optimizer=adam(5e-3)).train,
    "MLP, resumed": resume,
    "CNN, Adam": Plan(cnn, images, adam(3e-3), steps=250).train,
    "CNN, batch norm, momentum": Plan(lambda: cnn(norm=True), images, sgd(0.05, momentum=0.9), steps=250,
                                      validate="test_loss").train,
    "residual network": Plan(Residual, images, adamw(3e-3), steps=250).train,
    "RNN": Plan(lambda: Recurrent(nn.RNN), rows, adam(3e-3), steps=350, clip=1.0).train,
    "LSTM": Plan(lambda: Recurrent(nn.LSTM), rows, adam(5e-3), steps=350).train,
    "GRU, momentum": Plan(lambda: Recurrent(nn.GRU), rows, sgd(0.3, momentum=0.9), steps=350).train,
    "transformer, warm-up": Plan(Transformer, tokens, adamw(2e-3), schedule=_warm_up, steps=250,
                                 validate="val_loss").train,
    "word vectors": Plan(Bag, tokens, adam(1e-2), steps=300).train,
    "regression, linear": Plan(lambda: nn.Linear(10, 1), diabetes, sgd(0.05), functional.mse_loss).train,
    "regression, MLP, noisy": Plan(lambda: mlp(16, inputs=10, outputs=1), diabetes, adam(1e-3), functional.mse_loss,
                                   steps=250, validate="val_loss").train,
    "regression, raw targets": Plan(lambda: mlp(32, inputs=10, outputs=1), raw_diabetes, adam(3e-2),
                                    functional.mse_loss, steps=400).train,
    "regression, wave": Plan(lambda: mlp(64, 64, inputs=2, outputs=1, act=nn.Tanh), wave, adam(5e-3),
                             functional.mse_loss, steps=400, batch=64).train,
    "likelihood below zero": Plan(lambda: mlp(32, inputs=2, outputs=2, act=nn.Tanh), wave, adam(3e-3), _likelihood,
                                  steps=400, batch=64).train,
    "adversarial": adversarial,
    "cross-validation": folds,
    "federated loop": federated_loop,
    "federated loop, skewed": lambda: federated_loop(lr=0.05, skew=True, momentum=0.0, rounds=30),
    "federated": federated,
    "federated, skewed": lambda: federated(lr=0.05, skew=True, momentum=0.0, rounds=25),
}  # fmt: skip
