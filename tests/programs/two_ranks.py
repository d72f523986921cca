"""A plain DistributedDataParallel training: two_ranks.py DIRECTORY. Nothing in here knows about Stethos.

It trains until the file `end` is there. When `stray` is, rank 1 leaves the others alone in a collective until SIGUSR1
calls it back; when `drift` is, rank 1 goes its own way with its parameters; when `evaluate` is, rank 0 evaluates, and
the others wait for it; when `mismatch` is, rank 1 broadcasts where the others add up, and nobody comes back from that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

DIRECTORY = Path(sys.argv[1])
EVALUATION_S = 5.0


class Trainer:
    def __init__(self) -> None:
        self.current_step = 0


class CalledBack(Exception):
    pass


def call_back(number: int, frame: object) -> None:
    raise CalledBack


def stray() -> None:
    (DIRECTORY / "stray").unlink()
    with contextlib.suppress(CalledBack):
        time.sleep(3600)


def evaluate(model: torch.nn.Module) -> None:
    """Without a data loader: nothing is to be seen of it but that it computes."""
    end = time.monotonic() + EVALUATION_S
    with torch.no_grad():
        while time.monotonic() < end:
            model(torch.randn(64, 8))
    (DIRECTORY / "evaluate").unlink()


def main() -> None:
    signal.signal(signal.SIGUSR1, call_back)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    trainer = Trainer()
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 8)).pow(2).sum().backward()
        optimizer.step()
        trainer.current_step += 1
        time.sleep(0.01)
        if rank == 1 and (DIRECTORY / "drift").exists():
            (DIRECTORY / "drift").unlink()
            with torch.no_grad():
                model.module.weight.add_(1.0)
        if rank == 0 and (DIRECTORY / "evaluate").exists():
            evaluate(model.module)
        if rank == 1 and (DIRECTORY / "stray").exists():
            stray()
        if rank == 1 and (DIRECTORY / "mismatch").exists():
            dist.broadcast(torch.zeros(1), src=0)
        votes = torch.tensor([float((DIRECTORY / "end").exists())])
        dist.all_reduce(votes)
        if votes.item():
            break
    dist.destroy_process_group()
    os.write(1, b"end\n")


main()
