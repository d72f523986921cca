"""What the servers of the fourth set make of the updates of a round."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

State = dict[str, Tensor]
MIME = 0.5  # the share of the server's momentum in a local step


class Arrived(NamedTuple):
    """A client's new model, and what came with it: samples, the loss of the model that it got, and its steps."""

    state: State
    samples: int
    entry_loss: float
    steps: int


def mean_of(arrived: list[Arrived]) -> State:
    total = sum(one.samples for one in arrived)
    return {
        name: torch.stack([one.state[name] * (one.samples / total) for one in arrived]).sum(0)
        for name in arrived[0].state
    }


class Server:
    """Aggregates by an algorithm, and keeps what it needs from round to round."""

    def __init__(self, algorithm: str, lr: float) -> None:
        self.algorithm, self.lr = algorithm, lr
        self.round = 0
        self.squares: State = {}
        self.momentum: State = {}

    def aggregate(self, base: State, arrived: list[Arrived]) -> State:
        """The next global model."""
        self.round += 1
        mean = mean_of(arrived)
        match self.algorithm:
            case "fair":
                return self._fair(base, arrived)
            case "geometric-median":
                return _geometric_median(arrived)
            case "server-decay":
                return {name: base[name].lerp(mean[name], 1.1 * 0.88 ** (self.round - 1)) for name in base}
            case "server-adagrad":
                for name, value in base.items():
                    change = mean[name] - value
                    self.squares[name] = self.squares.get(name, torch.full_like(value, 1e-5)) + change.square()
                    mean[name] = value + 0.06 * change / (self.squares[name].sqrt() + 1e-3)
            case "mime":
                steps = sum(one.steps for one in arrived) / len(arrived)
                for name, value in base.items():
                    slope = (value - mean[name]) / (self.lr * max(steps, 1))
                    self.momentum[name] = MIME * self.momentum.get(name, torch.zeros_like(value)) + (1 - MIME) * slope
        return mean

    def _fair(self, base: State, arrived: list[Arrived]) -> State:
        """Clients with a high loss count more, by q-FedAvg with q = 1."""
        pull = {name: torch.zeros_like(value) for name, value in base.items()}
        weight = 0.0
        for one in arrived:
            loss = max(one.entry_loss, 0.05)
            slope = {name: (base[name] - one.state[name]) / self.lr for name in base}
            length = sum(float(value.square().sum()) for value in slope.values())
            for name in base:
                pull[name] += loss * slope[name]
            weight += length + loss / self.lr
        return {name: base[name] - pull[name] / weight for name in base}


def _geometric_median(arrived: list[Arrived]) -> State:
    flat = torch.stack([torch.cat([value.reshape(-1) for value in one.state.values()]) for one in arrived])
    middle = flat.mean(0)
    for _ in range(6):
        weights = 1 / (flat - middle).norm(dim=1).clamp_min(1e-6)
        middle = (weights[:, None] * flat).sum(0) / weights.sum()
    like = arrived[0].state
    parts = torch.split(middle, [value.numel() for value in like.values()])
    return {name: part.reshape(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}
