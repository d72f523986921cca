"""Ranks that the others wait for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar

import torch

from benchmarks.rankbench.job import Batch, Job, fault

_PAUSE_S = 0.03


class _Slow(Job):
    """A pause on one rank; in the healthy twin on all."""

    steps: ClassVar[int] = 100

    def pause(self) -> None:
        if self.is_odd or not self.is_faulty:
            time.sleep(_PAUSE_S)


@fault("rank-straggler")
class SlowForward(_Slow):
    def loss(self, step: int, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.pause()
        return super().loss(step, inputs, labels)


@fault("rank-straggler")
class SlowData(_Slow):
    def batches(self) -> Iterator[Batch]:
        for batch in super().batches():
            self.pause()
            yield batch


@fault("rank-straggler")
class SlowBackward(_Slow):
    """The gradient of one rank's last layer takes long, so that it arrives late at the exchange."""

    def __init__(self, is_faulty: bool) -> None:
        super().__init__(is_faulty)
        next(reversed(list(self.inner.children()))).register_full_backward_hook(lambda *_: self.pause())


@fault("rank-straggler")
class SlowOptimizer(_Slow):
    def update(self, step: int) -> None:
        super().update(step)
        self.pause()


@fault("rank-straggler")
class SlowFromSomeStepOn(_Slow):
    """One rank becomes slow in the middle of the job."""

    steps: ClassVar[int] = 160

    def loss(self, step: int, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if step >= self.steps // 2:
            self.pause()
        return super().loss(step, inputs, labels)


@fault("rank-straggler")
class SlowByComputing(Job):
    """One rank has three times the work."""

    steps: ClassVar[int] = 100

    def loss(self, step: int, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        extra = torch.randn(300, 300, generator=torch.Generator().manual_seed(step))
        for _ in range(24 if self.is_odd else 4):
            extra = extra @ extra / 300
        return super().loss(step, inputs, labels)
