"""Compiled trainings; prints what each left behind, and how many graphs dynamo made of it.

    python compiled.py [CASE ...]

The last line of the output is a JSON object. Nothing in here knows about Stethos.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
import torch._dynamo
from fingerprint import fingerprint, seed_all
from torch import nn
from torch.nn.functional import cross_entropy

CASES: dict[str, Callable[[], object]] = {}
SEEDS = (0, 1)
STEPS = 12


def case(function: Callable[[], object]) -> Callable[[], object]:
    CASES[function.__name__] = function
    return function


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.BatchNorm1d(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], object]) -> list[float]:
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = cross_entropy(model(torch.randn(16, 5)), torch.randint(0, 3, (16,)))
        loss.backward()
        step()
        losses.append(loss.item())
    return losses


@case
def model_inductor() -> object:
    model = Net()
    compiled = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters())
    return train(compiled, optimizer, optimizer.step), model, optimizer


@case
def model_in_place() -> object:
    """`Module.compile`, and a plain training afterwards in the same process."""
    model = Net()
    model.compile(backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = train(model, optimizer, optimizer.step)
    plain = Net()
    second = torch.optim.SGD(plain.parameters(), lr=0.1)
    return losses, train(plain, second, second.step), model, optimizer, plain, second


@case
def optimizer_step() -> object:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3))
    step = torch.compile(optimizer.step, backend="aot_eager")
    return train(model, optimizer, step), model, optimizer


@case
def train_step() -> object:
    """Forward, backward and the optimizer's step in one compiled function."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    @torch.compile(backend="aot_eager")
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(torch.randn(16, 5), torch.randint(0, 3, (16,))).item() for _ in range(STEPS)]
    return losses, model, optimizer


@case
def train_step_of_two_models() -> object:
    """The same compiled function for several models, as clients of a federation have."""
    left: list[object] = []

    @torch.compile(backend="eager")
    def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(x), y)

    for _ in range(2):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, torch.randn(16, 5), torch.randint(0, 3, (16,))).backward()
            optimizer.step()
        left += [model, optimizer]
    return left


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    for name in sys.argv[1:] or list(CASES):
        torch._dynamo.reset()
        counters = torch._dynamo.utils.counters
        counters.clear()
        prints = []
        for seed in SEEDS:
            seed_all(seed)
            prints.append(fingerprint(CASES[name]()))
        found[name] = {
            "prints": prints,
            "graphs": counters["stats"]["unique_graphs"],
            "calls": counters["stats"]["calls_captured"],
            "breaks": dict(counters["graph_break"]),
            "recompiles": sum(counters["recompiles"].values()),
            "frames": counters["frames"]["total"],
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
