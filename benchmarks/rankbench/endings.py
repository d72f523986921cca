"""Ranks that end before the others, or stand still."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.rankbench.job import Batch, Job, batch_of, fault


@fault("process-failure:ended-early")
class EndsEarly(Job):
    """One rank has fewer batches, and its program comes to its end."""

    def tell(self, step: int, loss: torch.Tensor) -> None:
        super().tell(step, loss)
        if self.is_odd and step == 60:
            sys.exit(0)


@fault("process-failure")
class Raises(Job):
    def tell(self, step: int, loss: torch.Tensor) -> None:
        super().tell(step, loss)
        if self.is_odd and step == 60:
            raise ValueError("label 11 of sample 977 is out of range")


@fault("process-failure")
class Killed(Job):
    def tell(self, step: int, loss: torch.Tensor) -> None:
        super().tell(step, loss)
        if self.is_odd and step == 60:
            os.kill(os.getpid(), signal.SIGKILL)


@fault("process-failure")
class CrashesBelowPython(Job):
    def tell(self, step: int, loss: torch.Tensor) -> None:
        super().tell(step, loss)
        if self.is_odd and step == 60:
            os.kill(os.getpid(), signal.SIGSEGV)


@fault("process-failure", "out-of-memory", "memory-growth")
class NoMemoryLeft(Job):
    """One rank keeps what it should let go, until an allocation fails."""

    def __init__(self, is_faulty: bool) -> None:
        super().__init__(is_faulty)
        self.kept: list[torch.Tensor] = []

    def tell(self, step: int, loss: torch.Tensor) -> None:
        super().tell(step, loss)
        if self.is_odd and step >= 40:
            if step == 40:
                with open("/proc/self/statm", encoding="ascii") as file:
                    size = int(file.read().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
            self.kept.append(torch.ones(1 << 20))


class _Rows(Dataset[Batch]):
    """Batches; the one at `stuck` never comes."""

    def __init__(self, seed: int, stuck: int) -> None:
        self.seed, self.stuck = seed, stuck

    def __len__(self) -> int:
        return Job.steps

    def __getitem__(self, index: int) -> Batch:
        if index == self.stuck:
            time.sleep(3600)
        return batch_of(torch.Generator().manual_seed(1000 * self.seed + index))


@fault("hang:missing-rank", is_hang=True)
class LoaderHangs(Job):
    """The data of one rank do not come."""

    workers = 0

    def batches(self) -> Iterator[Batch]:
        rows = _Rows(self.rank, 60 if self.is_odd else -1)
        yield from DataLoader(rows, batch_size=None, num_workers=self.workers)


@fault("hang:missing-rank", is_hang=True)
class WorkerOfTheLoaderHangs(LoaderHangs):
    workers = 1


@fault("hang:missing-rank", is_hang=True)
class StoppedBySignal(Job):
    """One rank is stopped, as by a debugger."""

    def tell(self, step: int, loss: torch.Tensor) -> None:
        super().tell(step, loss)
        if self.is_odd and step == 60:
            os.kill(os.getpid(), signal.SIGSTOP)
