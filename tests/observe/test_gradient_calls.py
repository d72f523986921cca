"""Programs that ask for gradients instead of calling `backward`: their steps, losses, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from recording import Recording
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.nn import functional

from stethos.diagnose.api import diagnose
from stethos.diagnose.finding import Severity

Record = Callable[..., Recording]
pytestmark = pytest.mark.usefixtures("unhurried")
STEPS = 60


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    inputs = torch.randn(256, 4)
    return inputs, torch.sin(inputs.sum(1, keepdim=True))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


def descend(loss_of: Callable[[Tensor, Tensor], Tensor], rate: float) -> list[float]:
    """Train by `autograd.grad`, with updates by hand; the losses."""
    inputs, targets = data()
    model, losses = net(), []
    weights = list(model.parameters())
    for _ in range(STEPS):
        batch = torch.randint(0, 256, (32,))
        loss = loss_of(model(inputs[batch]), targets[batch])
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= rate * gradient
    return losses


def kinds_of(recording: Recording) -> set[str]:
    recording.close()
    return {one.kind for one in diagnose(recording.path).findings if one.severity > Severity.INFO}


def test_updates_by_the_gradients_of_autograd_are_steps_with_their_losses(record: Record) -> None:
    recording = record()
    losses = descend(functional.mse_loss, 0.05)
    assert kinds_of(recording) == set()
    assert recording.column("SELECT loss FROM steps ORDER BY step") == losses[:-1]  # nothing follows the last update
    assert recording.column("SELECT what FROM gaps") == []
    assert recording.column("SELECT count(*) > 8 FROM inspections WHERE gradient_norm > 0") == [True]


def test_updates_up_the_gradient_of_a_loss_are_told(record: Record) -> None:
    recording = record()
    descend(functional.mse_loss, -0.01)
    assert "steps-uphill" in kinds_of(recording)


def test_updates_up_the_gradient_of_an_objective_are_right(record: Record) -> None:
    recording = record()
    descend(lambda outputs, targets: -functional.mse_loss(outputs, targets), -0.05)
    assert "steps-uphill" not in kinds_of(recording)


def test_a_functional_training_has_its_steps_and_losses(record: Record) -> None:
    """Weights are new tensors after each step, and whatever the loss is made of is wrapped."""
    inputs, targets = data()
    model, losses = net(), []
    weights = {name: one.detach() for name, one in model.named_parameters()}
    gradients_of = grad_and_value(
        lambda weights, batch, wanted: functional.mse_loss(functional_call(model, weights, (batch,)), wanted)
    )
    recording = record()
    for _ in range(STEPS):
        batch = torch.randint(0, 256, (32,))
        gradients, loss = gradients_of(weights, inputs[batch], targets[batch])
        losses.append(loss.item())
        weights = {name: one - 0.05 * gradients[name] for name, one in weights.items()}
    recording.close()
    assert recording.column("SELECT loss FROM steps ORDER BY step") == losses[:-1]
    assert recording.column("SELECT what FROM gaps") == []
    assert set(recording.column("SELECT function FROM inspections WHERE phase = 'training'")) == {"MseLoss"}


def test_gradients_that_an_optimizer_is_given_have_their_loss(record: Record) -> None:
    inputs, targets = data()
    model, losses = net(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    recording = record()
    for _ in range(STEPS):
        loss = functional.mse_loss(model(inputs), targets)
        losses.append(loss.item())
        for weight, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            weight.grad = gradient
        optimizer.step()
    recording.close()
    assert recording.column("SELECT loss FROM steps ORDER BY step") == losses


def test_gradients_of_pictures_are_no_training(record: Record) -> None:
    inputs, targets = data()
    model = net().requires_grad_(False)
    recording = record()
    for start in range(0, 160, 8):
        pictures = inputs[start : start + 8].clone().requires_grad_()
        torch.autograd.grad(functional.mse_loss(model(pictures), targets[start : start + 8]), pictures)
    recording.close()
    assert recording.column("SELECT count(*) FROM steps") == [0]


def test_gradients_beside_a_backward_are_no_training(record: Record) -> None:
    """A penalty on gradients, and one on weights, in a training that has its losses from `backward`."""
    inputs, targets = data()
    model, losses = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recording = record()
    for _ in range(STEPS):
        points = inputs.clone().requires_grad_()
        outputs = model(points)
        (slope,) = torch.autograd.grad(outputs.sum(), points, create_graph=True)
        loss = functional.mse_loss(outputs, targets) + 0.01 * slope.square().mean()
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        torch.autograd.grad(functional.mse_loss(model(inputs), targets), list(model.parameters()))
        optimizer.step()
    recording.close()
    assert recording.column("SELECT loss FROM steps ORDER BY step") == losses
