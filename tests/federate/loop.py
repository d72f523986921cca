"""A hand-written federated loop as people write them, and the same with Stethos added."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

import stethos
from stethos.federate.fingerprint import Fingerprint, change_in, fingerprints_of
from stethos.federate.sketch import SketchPlan

State = dict[str, torch.Tensor]


@dataclass
class Client:
    """Local data and a local training, as a user writes it."""

    name: str
    x: torch.Tensor
    y: torch.Tensor
    lr: float = 0.1
    epochs: int = 1
    batch: int = 16
    losses: list[float] = field(default_factory=list)

    def train(self, model: nn.Module) -> State:
        local = copy.deepcopy(model)
        optimizer = torch.optim.SGD(local.parameters(), lr=self.lr)
        self.losses = []
        for _ in range(self.epochs):
            for at in range(0, len(self.x), self.batch):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(local(self.x[at : at + self.batch]), self.y[at : at + self.batch])
                loss.backward()
                optimizer.step()
                self.losses.append(loss.item())
        return local.state_dict()


def make_model(seed: int = 0, hidden: int = 12, *, with_norm: bool = False) -> nn.Module:
    torch.manual_seed(seed)
    middle: list[nn.Module] = [nn.BatchNorm1d(hidden)] if with_norm else []
    return nn.Sequential(nn.Linear(8, hidden), *middle, nn.ReLU(), nn.Linear(hidden, 3))


def make_clients(count: int, samples: int = 64) -> list[Client]:
    generator = torch.Generator().manual_seed(7)
    mix = torch.randn(8, 3, generator=generator)
    clients = []
    for number in range(count):
        x = torch.randn(samples + 8 * number, 8, generator=generator)
        clients.append(Client(f"c{number}", x, (x @ mix).argmax(1)))
    return clients


def average(states: list[State], weights: list[int]) -> State:
    total = sum(weights)
    return {
        key: sum(weight / total * state[key].float() for state, weight in zip(states, weights, strict=True)).to(
            states[0][key].dtype
        )
        for key in states[0]
    }


@dataclass
class Story:
    """What the loop itself knows: the global model before each round, and what every client sent."""

    bases: list[State] = field(default_factory=list)
    sent: list[dict[str, State]] = field(default_factory=list)
    losses: list[dict[str, list[float]]] = field(default_factory=list)


def run_plain(model: nn.Module, clients: list[Client], rounds: int) -> None:
    """The loop without Stethos."""
    for _ in range(rounds):
        states = []
        for client in clients:
            states.append(client.train(model))
        model.load_state_dict(average(states, [len(client.x) for client in clients]))


def run_observed(
    model: nn.Module, clients: list[Client], rounds: int, *, spoil: Callable[[int, str, State], Any] | None = None,
    **options: Any,
) -> Story:  # fmt: skip
    """The same loop, with six lines added (those that name `stethos`, `fed`, `rnd` or `site`), and a story."""
    story = Story()
    with stethos.federation("toy", model=model, progress=False, **options) as fed:
        for rnd in fed.rounds(rounds):
            story.bases.append(copy.deepcopy(model.state_dict()))
            story.sent.append({})
            story.losses.append({})
            states = []
            for client in clients:
                with rnd.client(client.name) as site:
                    state = client.train(model)
                    if spoil is not None:
                        spoil(rnd.number, client.name, state)
                    states.append(state)
                    site.update(state, samples=len(client.x), loss=client.losses[-1])
                story.sent[-1][client.name] = copy.deepcopy(state)
                story.losses[-1][client.name] = client.losses
            with rnd.phase("aggregate"):
                model.load_state_dict(average(states, [len(client.x) for client in clients]))
            rnd.evaluate(loss=1.0 / rnd.number, accuracy=0.5, auc=0.75)
    return story


def fingerprint_of(plan: SketchPlan, base: Any, state: Any, client: str) -> Fingerprint:
    """Of one update by itself, the plain way."""
    rows = np.empty((1, plan.read), np.float32)
    return fingerprints_of(plan, rows, [change_in(plan, rows[0], base, state, client)])[0]
