"""A small data-parallel job, and the table of its variants: each changes one part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

FEATURES, CLASSES, BATCH = 20, 4, 16
Batch = tuple[torch.Tensor, torch.Tensor]


class Job:
    """One rank of a job; `is_faulty` where the fault is in it, `is_odd` on the rank that does something else then."""

    steps: ClassVar[int] = 150

    def __init__(self, is_faulty: bool) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.is_faulty = is_faulty
        self.is_odd = is_faulty and self.rank == odd_rank(self.world)
        self.inner = self.network()
        self.model = self.wrapped(self.inner)
        self.optimizer = self.chosen_optimizer()

    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def wrapped(self, inner: nn.Module) -> nn.Module:
        return DistributedDataParallel(inner)

    def chosen_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def batches(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(100 + self.rank)
        for _ in range(self.steps):
            yield batch_of(generator)

    def run(self) -> None:
        for step, (inputs, labels) in enumerate(self.batches()):
            self.train(step, inputs, labels)

    def train(self, step: int, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(step, inputs, labels)
        loss.backward()
        self.update(step)
        self.tell(step, loss.detach())

    def loss(self, step: int, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.model(inputs), labels)

    def update(self, step: int) -> None:
        self.optimizer.step()

    def tell(self, step: int, loss: torch.Tensor) -> None:
        """What is done after a step; here the loss is averaged now and then, as for a log."""
        if step % 10 == 9:
            dist.all_reduce(loss)


def batch_of(generator: torch.Generator, size: int = BATCH) -> Batch:
    inputs = torch.randn(size, FEATURES, generator=generator)
    return inputs, inputs[:, :CLASSES].argmax(1)


def odd_rank(world: int) -> int:
    return world // 2


@dataclass(frozen=True, slots=True)
class Kind:
    """A variant of the job, and what counts as its diagnosis.

    `causes` are a detector or `detector:kind`; none for a healthy job. `ranks` says who is to be named: the odd one,
    all, or, where two ranks differ and nothing tells which of them is right, `either` both or the odd one.
    """

    name: str
    job: type[Job]
    causes: tuple[str, ...] = ()
    ranks: Literal["odd", "all", "either"] = "odd"
    is_hang: bool = False

    def are_right(self, ranks: tuple[int, ...], world: int) -> bool:
        odd, everybody = (odd_rank(world),), tuple(range(world))
        return (
            ranks in {"odd": [odd], "all": [everybody], "either": [odd, everybody] if world == 2 else [odd]}[self.ranks]
        )


KINDS: dict[str, Kind] = {}


def fault(*causes: str, **facts: Any) -> Callable[[type[Job]], type[Job]]:
    """Put a faulty job and its healthy twin into the table."""
    assert causes
    return _entered(causes, facts)


def healthy() -> Callable[[type[Job]], type[Job]]:
    """Put a job into the table in which nobody is to be accused."""
    return _entered((), {})


def _entered(causes: tuple[str, ...], facts: dict[str, Any]) -> Callable[[type[Job]], type[Job]]:
    def enter(job: type[Job]) -> type[Job]:
        name = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in job.__name__)[1:]
        assert name not in KINDS, name
        KINDS[name] = Kind(name, job, causes, **facts)
        return job

    return enter
