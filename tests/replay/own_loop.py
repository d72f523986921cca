"""A federated loop as a user writes it, with dropout, shuffling and noise from three global generators.

python own_loop.py DIRECTORY NAME [--wait]: with --wait, a round is played for every line of stdin.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import stethos

State = dict[str, torch.Tensor]
OWN = torch.Generator()
GUILTY = "c3"  # the client that ruins the federation of the lab


def data_of(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(48, 8, generator=generator)
    return x, x[:, :3].argmax(1)


DATA = {f"w{number}": data_of(number) for number in range(3)}


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def train(state: State, client: str, round: int) -> State:
    model = build()
    model.load_state_dict(state)
    x, y = DATA[client]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        noise = 1 + 0.01 * np.random.rand() * random.random()
        for part in torch.randperm(len(x)).split(16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part]) * noise, y[part]).backward()
            optimizer.step()
    return model.state_dict()


def train_unseeded(state: State, client: str, round: int) -> State:
    OWN.seed()
    torch.manual_seed(int(torch.randint(1 << 30, (1,), generator=OWN)))
    return train(state, client, round)


def train_on_other_data(state: State, client: str, round: int) -> State:
    return train(state, "w0" if client != "w0" else "w1", round)


def train_with_rounding(state: State, client: str, round: int) -> State:
    return {
        name: value * (1 + 1e-7) if value.is_floating_point() else value
        for name, value in train(state, client, round).items()
    }


def train_badly(state: State, client: str, round: int) -> State:
    raise ValueError("no such ward")


def train_for_ever(state: State, client: str, round: int) -> State:
    while True:
        pass


def evaluate(state: State) -> dict[str, float]:
    model = build()
    model.load_state_dict(state)
    model.eval()
    x, y = (torch.cat(parts) for parts in zip(*DATA.values(), strict=True))
    with torch.no_grad():
        scores = model(x)
    return {
        "loss": float(nn.functional.cross_entropy(scores, y)),
        "accuracy": float((scores.argmax(1) == y).float().mean()),
    }


def average(state: State, states: list[State], samples: list[int]) -> State:
    return {name: (sum(one[name] for one in states) / len(states)).to(value.dtype) for name, value in state.items()}


def federate(directory: Path, name: str, rounds: int = 3, *, wait: bool = False, **options: Any) -> Path:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    model = build()
    with stethos.federation("wards", model=model, dir=directory, run=name, progress=False, **options) as fed:
        fed.trainer(train)
        fed.evaluator(evaluate)
        for rnd in fed.rounds(rounds):
            if wait and not sys.stdin.readline():
                break
            states = []
            for client in DATA:
                with rnd.client(client) as site:
                    states.append(train(model.state_dict(), client, rnd.number))
                    site.update(states[-1], samples=48)
            model.load_state_dict(average(model.state_dict(), states, [48] * 3))
            rnd.evaluate(**evaluate(model.state_dict()))
            if fed.capture is not None and wait:
                print(rnd.number, flush=True)
    assert fed.path is not None
    return fed.path


if __name__ == "__main__":
    federate(Path(sys.argv[1]), sys.argv[2], 20, wait="--wait" in sys.argv, capture="all")
