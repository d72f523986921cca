"""Weights that programs update by hand, without an optimizer: their steps are recorded."""

from __future__ import annotations

from collections.abc import Callable

import torch
from recording import Recording
from torch import nn
from torch.nn import functional

Record = Callable[..., Recording]


def test_a_regression_with_updates_by_hand_has_its_steps_and_losses(record: Record) -> None:
    """A polynomial is fitted to random points; gradients are applied to `data`, and zeroed by the model."""
    torch.manual_seed(0)
    weights, offset = torch.randn(4, 1) * 5, torch.randn(1) * 5
    layer = nn.Linear(4, 1)
    recording = record()
    losses = []
    for _ in range(60):
        points = torch.randn(32, 1)
        inputs = torch.cat([points**power for power in range(1, 5)], 1)
        layer.zero_grad()
        output = functional.smooth_l1_loss(layer(inputs), inputs.mm(weights) + offset)
        losses.append(output.item())
        output.backward()
        for parameter in layer.parameters():
            assert parameter.grad is not None
            parameter.data.add_(-0.1 * parameter.grad)
    recording.close()
    assert recording.column("SELECT loss FROM steps ORDER BY step") == losses


def test_a_language_model_with_clipped_updates_by_hand_has_its_steps(record: Record) -> None:
    """Hidden state is carried over and detached, gradients are clipped, and weights updated by `add_` of `data`."""
    torch.manual_seed(0)
    words = torch.randint(0, 20, (8, 201))
    embedding, network, head = nn.Embedding(20, 12), nn.LSTM(12, 16, batch_first=True), nn.Linear(16, 20)
    model = nn.ModuleList([embedding, network, head])
    state = (torch.zeros(1, 8, 16), torch.zeros(1, 8, 16))
    recording = record()
    for place in range(0, 200, 5):
        model.zero_grad()
        state = (state[0].detach(), state[1].detach())
        output, state = network(embedding(words[:, place : place + 5]), state)
        loss = functional.cross_entropy(head(output).flatten(0, 1), words[:, place + 1 : place + 6].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad, alpha=-0.5)
    recording.close()
    count, known, model_name = recording.rows("SELECT count(*), count(loss), max(model) FROM steps")[0]
    assert (count, known) == (40, 40) and model_name


def test_backward_without_any_update_makes_no_step(record: Record) -> None:
    layer = nn.Linear(4, 1)
    recording = record()
    for _ in range(20):
        layer.zero_grad()
        layer(torch.randn(8, 4)).square().mean().backward()
    recording.close()
    assert recording.column("SELECT count(*) FROM steps") == [0]
