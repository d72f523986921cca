"""How the server makes a new global model out of what clients send.

A strategy gets the global vector, one row per client and their sample counts.
It keeps nothing itself: what it must remember between rounds goes into
`memory`. Non-finite updates go in like any other, as they would in reality.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stethos.errors import UsageError
from stethos.lab.choice import choose

Memory = dict[str, Tensor]


class Strategy(Protocol):
    """How a server makes the new global weights; `memory` is kept for it from round to round."""

    @property
    def proximal(self) -> float:
        """Weight of the proximal term in the clients' loss; 0 for none."""

    def combine(self, current: Tensor, sent: Tensor, samples: Tensor, memory: Memory) -> Tensor: ...


def _mean(sent: Tensor, samples: Tensor) -> Tensor:
    return (samples / samples.sum()).to(sent.dtype) @ sent


@dataclass(frozen=True, slots=True)
class FedAvg:
    """The mean of what the clients sent, weighted by their samples."""

    proximal: float = 0.0

    def combine(self, current: Tensor, sent: Tensor, samples: Tensor, memory: Memory) -> Tensor:
        return _mean(sent, samples)


@dataclass(frozen=True, slots=True)
class FedProx:
    """FedAvg whose clients are held to the global model: mu / 2 times the squared distance is added to their loss."""

    mu: float = 0.1

    @property
    def proximal(self) -> float:
        return self.mu

    def combine(self, current: Tensor, sent: Tensor, samples: Tensor, memory: Memory) -> Tensor:
        return _mean(sent, samples)


@dataclass(frozen=True, slots=True)
class FedAdam:
    """Adam at the server, on the mean update (Reddi and others, 2021: no bias correction)."""

    lr: float = 0.03
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    proximal: float = 0.0

    def combine(self, current: Tensor, sent: Tensor, samples: Tensor, memory: Memory) -> Tensor:
        change = _mean(sent, samples) - current
        m = memory.get("m", torch.zeros_like(change)) * self.beta1 + (1 - self.beta1) * change
        v = memory.get("v", torch.full_like(change, self.tau**2)) * self.beta2 + (1 - self.beta2) * change**2
        memory.update(m=m, v=v)
        return current + self.lr * m / (v.sqrt() + self.tau)


@dataclass(frozen=True, slots=True)
class Median:
    """The coordinate-wise median, whatever the sample counts; a NaN counts as the largest number."""

    proximal: float = 0.0

    def combine(self, current: Tensor, sent: Tensor, samples: Tensor, memory: Memory) -> Tensor:
        ranked = sent.sort(dim=0).values
        return (ranked[(len(sent) - 1) // 2] + ranked[len(sent) // 2]) / 2


@dataclass(frozen=True, slots=True)
class TrimmedMean:
    """The coordinate-wise mean without the `share` largest and the `share` smallest, whatever the sample counts."""

    share: float = 0.2
    proximal: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise UsageError(f"a trimmed share of {self.share} leaves nothing", hint="choose 0 <= share < 0.5")

    def combine(self, current: Tensor, sent: Tensor, samples: Tensor, memory: Memory) -> Tensor:
        cut = int(self.share * len(sent))
        return sent.sort(dim=0).values[cut : len(sent) - cut].mean(dim=0)


STRATEGIES: dict[str, Strategy] = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(),
    "fedadam": FedAdam(),
    "median": Median(),
    "trimmed-mean": TrimmedMean(),
}


def strategy_of(choice: Strategy | str) -> Strategy:
    """A strategy by its name, or the caller's own."""
    return choose("strategy", choice, STRATEGIES) if isinstance(choice, str) else choice
