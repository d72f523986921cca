"""Bugs made by operators on small models: every operator on every model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.wildtraining.case import BLOWN_UP, CASES, STUCK, Case
from benchmarks.wildtraining.data import cnn, digits, loader, mlp, words


class Sequence(nn.Module):
    """A word model with one recurrent layer; predicts the last word of a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(24, 16), nn.GRU(16, 32, batch_first=True), nn.Linear(32, 24)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.cell(self.embedding(inputs))[0][:, -1])


class Attention(nn.Module):
    """The same with a layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(24, 32), nn.Linear(32, 24)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True, norm_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(inputs))[:, -1])


def _sentences() -> tuple[Tensor, Tensor]:
    sentences = words(count=1200, length=6)
    return sentences[:, :-1], sentences[:, -1]


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]], float]] = {
    "dense": (lambda: nn.Sequential(nn.Flatten(), mlp(64, 64, 32, 10, dropout=0.1)), digits, 3e-3),
    "convolution": (lambda: cnn(norm=True, dropout=0.1), digits, 3e-3),
    "recurrent": (Sequence, _sentences, 5e-3),
    "attention": (Attention, _sentences, 3e-3),
}


class Loop:
    """A plain training loop with a place for each operator."""

    def __init__(self, model: str) -> None:
        make, data, self.rate = MODELS[model]
        self.model, (self.inputs, self.labels) = make(), data()
        self.shuffle = True
        self.activation: Callable[[Tensor], Tensor] = lambda output: output
        self.zero: Callable[[Any], None] = lambda optimizer: optimizer.zero_grad()
        self.before_step: Callable[[nn.Module, Any], None] = lambda model, optimizer: None
        self.chosen: Callable[[nn.Module], Any] = lambda model: model.parameters()
        self.is_training = True
        self.does_step = True

    def run(self) -> None:
        model, optimizer = self.model, torch.optim.Adam(self.chosen(self.model), lr=self.rate)
        for _ in range(4):
            model.train(self.is_training)
            for batch, target in loader(self.inputs, self.labels, shuffle=self.shuffle):
                self.zero(optimizer)
                loss = functional.cross_entropy(self.activation(model(batch)), target)
                loss.backward()
                self.before_step(model, optimizer)
                if self.does_step:
                    optimizer.step()


def _softmax(loop: Loop) -> None:
    loop.activation = lambda output: output.softmax(-1)


def _no_zero_grad(loop: Loop) -> None:
    loop.zero = lambda optimizer: None


def _clip(loop: Loop) -> None:
    loop.before_step = lambda model, optimizer: nn.utils.clip_grad_norm_(model.parameters(), 0.0)


def _empty(loop: Loop) -> None:
    loop.before_step = lambda model, optimizer: optimizer.zero_grad()


def _no_step(loop: Loop) -> None:
    loop.does_step = False


def _evaluation(loop: Loop) -> None:
    loop.is_training = False


def _half_optimized(loop: Loop) -> None:
    loop.chosen = lambda model: list(model.parameters())[len(list(model.parameters())) // 2 :]


def _high_rate(loop: Loop) -> None:
    loop.rate *= 300


def _low_rate(loop: Loop) -> None:
    loop.rate *= 1e-6


def _zero_start(loop: Loop) -> None:
    for parameter in loop.model.parameters():
        nn.init.zeros_(parameter)


def _mixed_labels(loop: Loop) -> None:
    order = torch.randperm(len(loop.labels), generator=torch.Generator().manual_seed(1))
    loop.labels = loop.labels[order]


def _sorted_labels(loop: Loop) -> None:
    order = loop.labels.argsort()
    loop.inputs, loop.labels, loop.shuffle = loop.inputs[order], loop.labels[order], False


def _wrong_sign(loop: Loop) -> None:
    loop.before_step = lambda model, optimizer: [
        parameter.grad.neg_() for parameter in model.parameters() if parameter.grad is not None
    ]


OPERATORS: dict[str, tuple[Callable[[Loop], None], tuple[str, ...], tuple[str, ...]]] = {
    "softmax-twice": (_softmax, ("wrong-loss:softmax-before-logits",), STUCK),
    "no-zero-grad": (_no_zero_grad, ("gradients-not-zeroed",), BLOWN_UP),
    "clip-to-zero": (_clip, ("lost-gradients:emptied-before-step",), STUCK),
    "emptied-gradients": (_empty, ("lost-gradients:emptied-before-step",), STUCK),
    "no-step": (_no_step, ("lost-gradients:backward-without-step",), STUCK),
    "evaluation-mode": (_evaluation, ("wrong-mode:evaluation-mode-in-training",), ("overfitting",)),
    "half-optimized": (_half_optimized, ("unoptimized-parameters:not-in-optimizer",), STUCK),
    "high-rate": (_high_rate, ("learning-rate-too-high",), BLOWN_UP),
    "low-rate": (_low_rate, ("learning-rate-too-low",), STUCK),
    "zero-start": (_zero_start, ("poor-initialisation",), (*STUCK, "dead-units", "vanishing-gradients")),
    "mixed-labels": (_mixed_labels, ("implausible-loss:chance-level", "odd-batch:unrelated-labels"), STUCK),
    "sorted-labels": (_sorted_labels, ("odd-batch:sorted-labels",), (*STUCK, "oscillation", "series-anomaly")),
    "ascent": (_wrong_sign, ("divergence",), BLOWN_UP),
}
_WITHOUT = {("evaluation-mode", "recurrent")}  # nothing in it depends on the mode


def _program(model: str, operator: str, bug: bool) -> None:
    loop = Loop(model)
    if bug:
        OPERATORS[operator][0](loop)
    loop.run()


for _model in MODELS:
    for _operator, (_, _causes, _symptoms) in OPERATORS.items():
        if (_operator, _model) not in _WITHOUT:
            _name = f"{_model}-{_operator}"
            CASES[_name] = Case(_name, "mutation", partial(_program, _model, _operator), _causes, _symptoms)
