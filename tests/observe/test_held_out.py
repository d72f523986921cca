"""Losses that are given samples kept for evaluation, and what is taken for an answer in one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from recording import Recording
from torch.nn import functional

from stethos.diagnose.api import diagnose
from stethos.diagnose.finding import Severity

Record = Callable[..., Recording]
pytestmark = pytest.mark.usefixtures("unhurried")


def kinds_of(recording: Recording) -> set[str]:
    recording.close()
    return {one.kind for one in diagnose(recording.path).findings if one.severity > Severity.INFO}


@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("is_field", [True, False])
def test_a_mask_of_training_samples_that_the_loss_does_not_use(record: Record, is_masked: bool, is_field: bool) -> None:
    torch.manual_seed(0)
    recording = record()
    nodes, classes = torch.randn(60, 5), torch.arange(60) % 3
    chosen = torch.rand(60) < 0.4
    if is_field:
        graph = SimpleNamespace(train_mask=chosen)
    else:
        train_mask = chosen
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(12):
        out = model(nodes)
        loss = functional.cross_entropy(out[chosen], classes[chosen]) if is_masked else (
            functional.cross_entropy(out, classes)
        )  # fmt: skip
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (graph.train_mask if is_field else train_mask) is chosen
    assert ("held-out-labels" in kinds_of(recording)) == (not is_masked)


def test_a_layer_in_between_is_no_answer(record: Record) -> None:
    """Of a model in two parts the first one's outputs are no classes, however well their shape fits the labels."""
    torch.manual_seed(0)
    recording = record()
    inputs, label = torch.randn(120, 8), torch.arange(120) % 3
    inputs[torch.arange(120), label] += 4
    body, head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 3)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.02)
    for _ in range(80):
        loss = functional.cross_entropy(head(body(inputs).relu()), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        hits = (head(body(inputs).relu()).argmax(1) == label).float().mean()
    assert hits > 0.8
    assert "worse-than-one-answer" not in kinds_of(recording)


def test_weights_that_are_moved_uphill_and_back_beside_an_optimizer(record: Record) -> None:
    """A step of SAM: up the gradient first, then from there."""
    torch.manual_seed(0)
    recording = record()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(12):
        inputs = torch.randn(16, 4)
        functional.mse_loss(model(inputs), inputs[:, :1]).backward()
        moves = [0.05 * one.grad for one in model.parameters() if one.grad is not None]
        with torch.no_grad():
            for one, move in zip(model.parameters(), moves, strict=True):
                one.add_(move)
        optimizer.zero_grad()
        functional.mse_loss(model(inputs), inputs[:, :1]).backward()
        with torch.no_grad():
            for one, move in zip(model.parameters(), moves, strict=True):
                one.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
    assert "steps-uphill" not in kinds_of(recording)
