"""What broke a loss, from its graph: planted by hand, and end to end through a recording."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.nan_origins import tried
from stethos.observe.nan_origin import Owner, find_broken_weights, find_origin


def plain(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x) - y).pow(2).mean()


def bad_input(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[3, 2] = math.nan
    return plain(model, x, y)


def bad_label(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y[3, 2] = math.nan
    return plain(model, x, y)


def infinite_label(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y[3, 2] = math.inf
    return nn.functional.mse_loss(model(x), y)


def bad_weight(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    model[3].weight.data[2, 2] = math.nan
    return plain(model, x, y)


def hook(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    model[0].register_forward_hook(lambda module, inputs, output: output * math.nan)
    return plain(model, x, y)


def overflow(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = model[:5](x)
    return (model[5](hidden / (hidden * 0)) - y).pow(2).mean()


def root_in_loss(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(model(x).sum() * 0 - 1)


@pytest.mark.parametrize(
    ("breaks", "kind", "layers"),
    [
        (bad_input, "input", ["0"]),
        (bad_label, "label", []),
        (infinite_label, "label", []),
        (bad_weight, "weight", ["3.weight"]),
        (hook, "activation", ["0"]),
        (overflow, "activation", ["3"]),
        (root_in_loss, "loss", []),
    ],
)
def test_the_graph_tells_what_was_not_finite_first(
    breaks: Callable[..., torch.Tensor], kind: str, layers: list[str]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(32, 8), torch.randn(32, 4)
    plain(model, x, y).backward()
    optimizer.step()
    loss = breaks(model, x, y)
    owners = {id(p): Owner(name, dict(optimizer.state[p])) for name, p in model.named_parameters()}
    found: dict[str, Any] = find_origin(loss, loss.item(), owners)
    assert (found["kind"], found["layers"]) == (kind, layers)


def test_a_mask_of_minus_infinity_is_not_taken_for_the_origin() -> None:
    model = nn.Linear(4, 4)
    scores = model(torch.randn(2, 4)).masked_fill(torch.tensor([True, False, False, False]), -math.inf)
    shares = torch.softmax(scores, 1)
    loss = (shares.sum() * 0 - 1).log()
    found = find_origin(loss, math.nan, {id(p): Owner(name, {}) for name, p in model.named_parameters()})
    assert found["kind"] == "loss"


@pytest.mark.parametrize("name", ["gradient body.2.weight NaN", "weight head.weight inf", "activation log-1"])
def test_layer_step_and_kind_are_named(name: str) -> None:
    ((_, answer, is_right),) = tried("cpu", name)
    assert is_right, answer


@pytest.mark.parametrize(("is_kept", "kind"), [(True, "gradient"), (False, "weight")])
def test_broken_weights_are_named_without_a_graph(is_kept: bool, kind: str) -> None:
    """As on a GPU, where the loss is known only after its backward."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    weight = model[1].weight
    assert weight.grad is not None
    if is_kept:
        weight.grad[2, 2] = math.nan
    optimizer.step()
    if not is_kept:
        weight.data[2, 2] = math.nan
    named = list(model.named_parameters())
    owners = {id(one): Owner(name, dict(optimizer.state[one])) for name, one in named}
    assert find_broken_weights([one for _, one in named], owners) == {"kind": kind, "layers": ["1.weight"]}
    weight.data.zero_()
    assert find_broken_weights([one for _, one in named], owners) is None
