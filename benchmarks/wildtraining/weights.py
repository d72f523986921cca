"""Bugs of numbers: weights at the start, units, depth, precision."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.wildtraining.case import BLOWN_UP, STUCK, case
from benchmarks.wildtraining.data import blobs, cnn, digits, line, loader, mlp, words

_FLAT = (*STUCK, "vanishing-gradients", "dead-units", "saturated-units")


def _train(model, data, lr=0.1, epochs=5, make=torch.optim.SGD, loss_of=functional.cross_entropy) -> None:
    optimizer = make(model.parameters(), lr=lr)
    for _ in range(epochs):
        for batch, target in data:
            optimizer.zero_grad()
            loss_of(model(batch), target).backward()
            optimizer.step()


@case("poor-initialisation", symptoms=_FLAT)
def all_weights_zero(bug: bool) -> None:
    model = mlp(20, 32, 32, 5)
    if bug:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    _train(model, loader(*blobs()))


@case("poor-initialisation", symptoms=_FLAT)
def all_weights_equal(bug: bool) -> None:
    inputs, labels = digits()
    model = nn.Sequential(nn.Flatten(), mlp(64, 32, 10))
    if bug:
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.05)
    _train(model, loader(inputs, labels), lr=3e-3, make=torch.optim.Adam)


@case("poor-initialisation", symptoms=(*BLOWN_UP, "saturated-units"))
def weights_drawn_too_large(bug: bool) -> None:
    model = mlp(20, 64, 64, 5)
    if bug:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=5.0)
    _train(model, loader(*blobs()), lr=0.01)


@case("dead-units", symptoms=STUCK)
def relu_units_dead_from_the_start(bug: bool) -> None:
    model = mlp(20, 48, 5)
    if bug:
        nn.init.constant_(model[0].bias, -30.0)
    _train(model, loader(*blobs()))


@case("dead-units", "learning-rate-too-high", symptoms=(*STUCK, *BLOWN_UP))
def relu_units_killed_by_a_large_step(bug: bool) -> None:
    inputs, targets = line()
    _train(mlp(8, 32, 32, 1), loader(inputs, targets), lr=5.0 if bug else 0.02, loss_of=functional.mse_loss)


@case("saturated-units", "poor-initialisation", "odd-batch:unscaled-inputs", symptoms=_FLAT)
def tanh_units_saturated(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 48, 48, 5, act=nn.Tanh)
    if bug:
        with torch.no_grad():
            model[0].weight.mul_(100)
            model[2].weight.mul_(100)
    _train(model, loader(points, labels), lr=0.05)


@case("vanishing-gradients", symptoms=STUCK)
def twenty_sigmoid_layers(bug: bool) -> None:
    model = mlp(20, *[24] * (14 if bug else 1), 5, act=nn.Sigmoid if bug else nn.ReLU)
    _train(model, loader(*blobs()), lr=0.1)


@case("exploding-gradients", "learning-rate-too-high", symptoms=BLOWN_UP)
def recurrence_that_explodes(bug: bool) -> None:
    sentences = words(count=256, length=40)
    embedding, cell, head = (
        nn.Embedding(24, 16),
        nn.RNN(16, 32, nonlinearity="relu", batch_first=True),
        nn.Linear(32, 24),
    )
    if bug:
        nn.init.eye_(cell.weight_hh_l0)
        with torch.no_grad():
            cell.weight_hh_l0.mul_(1.6)
    model = nn.ModuleList([embedding, cell, head])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        for (batch,) in loader(sentences):
            state, _ = cell(embedding(batch[:, :-1]))
            optimizer.zero_grad()
            functional.cross_entropy(head(state).flatten(0, 1), batch[:, 1:].flatten()).backward()
            if not bug:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


@case("non-finite-loss", "non-finite-gradients", symptoms=BLOWN_UP)
def logarithm_of_zero(bug: bool) -> None:
    points, labels = blobs(classes=2)
    model = mlp(20, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(300):
        chosen = torch.randint(0, len(points), (32,))
        said = torch.sigmoid(model(points[chosen] * 20).squeeze(1))
        wanted, small = labels[chosen].float(), 0.0 if bug else 1e-6
        loss = -(wanted * (said + small).log() + (1 - wanted) * (1 - said + small).log()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("non-finite-gradients", symptoms=BLOWN_UP)
def root_of_zero(bug: bool) -> None:
    """The distance of a point to itself has an infinite slope."""
    points, labels = blobs()
    model = mlp(20, 32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(150):
        chosen = torch.randint(0, len(points), (24,))
        code = model(points[chosen])
        squares = (code[:, None] - code[None]).pow(2).sum(2)
        distances = (squares if bug else squares + 1e-6).sqrt()
        same = (labels[chosen][:, None] == labels[chosen][None]).float()
        loss = (same * distances + (1 - same) * (2 - distances).clamp(min=0)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("non-finite-gradients", "non-finite-loss", "non-finite-weights", symptoms=BLOWN_UP)
def half_precision_overflows(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        for batch, target in loader(points, labels):
            optimizer.zero_grad()
            output = model(batch)
            if bug:
                output = (output.half() * 300).pow(2).float() / 9e4
            functional.cross_entropy(output, target).backward()
            optimizer.step()


@case("series-anomaly", "odd-batch:unscaled-inputs", symptoms=BLOWN_UP)
def one_batch_of_another_scale(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(240):
        chosen = torch.randint(0, len(points), (32,))
        batch = points[chosen] * (3000.0 if bug and step == 150 else 1.0)
        optimizer.zero_grad()
        functional.cross_entropy(model(batch), labels[chosen]).backward()
        optimizer.step()


@case("divergence", "series-anomaly", "learning-rate-too-high", symptoms=BLOWN_UP)
def rate_raised_in_the_middle(bug: bool) -> None:
    inputs, targets = line()
    model = mlp(8, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(260):
        if step == 130 and bug:
            optimizer.param_groups[0]["lr"] = 5.0
        chosen = torch.randint(0, len(inputs), (32,))
        optimizer.zero_grad()
        functional.mse_loss(model(inputs[chosen]), targets[chosen]).backward()
        optimizer.step()


@case("non-finite-weights", "non-finite-loss", symptoms=BLOWN_UP)
def weight_overwritten(bug: bool) -> None:
    inputs, labels = digits()
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0
    for _ in range(4):
        for batch, target in loader(inputs, labels):
            step += 1
            if bug and step == 90:
                with torch.no_grad():
                    model[0].weight[0, 0, 0, 0] = torch.inf
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
