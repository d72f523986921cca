"""Trainings that were written after the thresholds were set and never used to set them: faulty and healthy ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler as schedules

from benchmarks.trainbench.faulty import TOO_FAST, Fault, copy_of, from_step, one_nan
from benchmarks.trainbench.model import (
    Recurrent,
    Transformer,
    cnn,
    diabetes,
    digits,
    images,
    mlp,
    raw_diabetes,
    rows,
    tokens,
    wave,
)  # fmt: skip
from benchmarks.trainbench.plan import Batch, Plan, Training, adam, adamw, rmsprop, sgd


def _nan_target(inputs: torch.Tensor, targets: torch.Tensor) -> Batch:
    return inputs, one_nan(targets, targets)[0]


def _mask_first(training: Training) -> None:
    """A mask that lets no gradient through to the first layer."""
    for parameter in list(training.model.parameters())[:2]:
        if parameter.grad is not None:
            parameter.grad.zero_()


def _dead_convolution(model: nn.Module) -> None:
    nn.init.constant_(model[0].bias, -30.0)  # type: ignore[index]


def _triangles(optimizer: torch.optim.Optimizer, steps: int) -> schedules.CyclicLR:
    return schedules.CyclicLR(optimizer, base_lr=0.01, max_lr=0.2, step_size_up=steps // 8)


def _decay_in_steps(optimizer: torch.optim.Optimizer, steps: int) -> schedules.StepLR:
    return schedules.StepLR(optimizer, steps // 3, gamma=0.1)


def autoencoder() -> None:
    """Two halves with an optimizer each and one loss."""
    inputs = digits()[0]
    coder, decoder = mlp(32, outputs=8), mlp(32, inputs=8, outputs=64)
    both = [torch.optim.Adam(half.parameters(), lr=2e-3) for half in (coder, decoder)]
    for _ in range(300):
        chosen = inputs[torch.randint(0, len(inputs), (64,))]
        for optimizer in both:
            optimizer.zero_grad()
        functional.mse_loss(decoder(coder(chosen)), chosen).backward()  # type: ignore[no-untyped-call]
        for optimizer in both:
            optimizer.step()


def _huber(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.huber_loss(output, target)


UNSEEN_FAULTS: dict[str, Fault] = {
    "NaN in a target, regression": Fault(Plan(lambda: mlp(16, inputs=10, outputs=1), diabetes, adam(1e-3),
                                              functional.mse_loss, feed=from_step(90, _nan_target, 91)).train,
                                         ("non-finite-loss",)),
    "learning rate 1 on raw targets": Fault(Plan(lambda: mlp(32, inputs=10, outputs=1), raw_diabetes, sgd(1.0),
                                                 functional.mse_loss, steps=200).train, TOO_FAST),
    "learning rate 1e-9, RNN": Fault(Plan(lambda: Recurrent(nn.RNN), rows, adam(1e-9)).train,
                                     ("learning-rate-too-low",)),
    "gradient of the first layer masked": Fault(Plan(optimizer=sgd(0.1), meddle=_mask_first).train,
                                                ("frozen-layers",)),
    "optimizer of a copy, CNN": Fault(Plan(cnn, images, adamw(1e-3), optimized=copy_of, steps=150).train,
                                      ("detached-loss",)),
    "gradients not zeroed, GRU": Fault(Plan(lambda: Recurrent(nn.GRU), rows, adam(1e-3), does_zero=False).train,
                                       ("gradients-not-zeroed",)),
    "broken batch, CNN": Fault(Plan(cnn, images, sgd(0.02), steps=250, feed=from_step(
        150, lambda inputs, targets: (inputs * -80, targets), 151)).train, ("series-anomaly",)),
    "sixty sentences": Fault(Plan(Transformer, tokens, adam(2e-3), few=60, steps=400, validate="valid_loss").train,
                             ("overfitting",)),
    "dead convolution": Fault(Plan(cnn, images, sgd(0.1), prepare=_dead_convolution, steps=200).train,
                              ("dead-units",)),
    "inputs not scaled, sigmoid": Fault(Plan(lambda: mlp(64, 64, act=nn.Sigmoid), optimizer=sgd(0.01), feed=from_step(
        0, lambda inputs, targets: (inputs * 2000 - 800, targets))).train, ("saturated-units",)),
}  # fmt: skip

UNSEEN_HEALTHY: dict[str, Callable[[], None]] = {
    "MLP, LeakyReLU, weight decay": Plan(lambda: mlp(96, act=nn.LeakyReLU),
                                         optimizer=sgd(0.15, weight_decay=1e-3)).train,
    "MLP, Adagrad": Plan(optimizer=lambda parameters: torch.optim.Adagrad(parameters, lr=0.02)).train,
    "MLP, wide, Adam, batch 256": Plan(lambda: mlp(512), optimizer=adam(1e-3), batch=256, steps=200).train,
    "MLP, eight layers with norm": Plan(lambda: mlp(*[48] * 8, norm=True), optimizer=sgd(0.05, momentum=0.9)).train,
    "MLP, cyclic rate": Plan(optimizer=sgd(0.01, momentum=0.9), schedule=_triangles, steps=400).train,
    "MLP, rate in steps, ELU": Plan(lambda: mlp(64, 32, act=nn.ELU), optimizer=sgd(0.3), schedule=_decay_in_steps,
                                    validate="val_loss").train,
    "MLP, batch 4, sigmoid": Plan(lambda: mlp(32, act=nn.Sigmoid), optimizer=adam(2e-3), batch=4, steps=600).train,
    "CNN, RMSprop": Plan(cnn, images, rmsprop(1e-3), steps=250).train,
    "LSTM, momentum, clipped": Plan(partial(Recurrent, nn.LSTM), rows, sgd(0.5, momentum=0.9), clip=1.0,
                                    steps=400).train,
    "transformer, Adam": Plan(Transformer, tokens, adam(1e-3), steps=250).train,
    "regression, Huber": Plan(lambda: mlp(32, inputs=10, outputs=1), diabetes, adamw(2e-3), _huber).train,
    "regression, wave, SGD": Plan(lambda: mlp(64, inputs=2, outputs=1, act=nn.Tanh), wave, sgd(0.05, momentum=0.9),
                                  functional.mse_loss, steps=400).train,
    "autoencoder, two optimizers": autoencoder,
}  # fmt: skip
