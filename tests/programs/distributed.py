"""Distributed trainings on gloo; every rank prints what it is left with.

    torchrun --nproc-per-node 2 distributed.py [CASE ...]

Each rank prints one line, a JSON object. Nothing in here knows about Stethos.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from fingerprint import fingerprint, seed_all
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CASES: dict[str, Callable[[], object]] = {}
SEEDS = (0, 1)


def case(function: Callable[[], object]) -> Callable[[], object]:
    CASES[function.__name__] = function
    return function


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def loss_of(model: nn.Module) -> torch.Tensor:
    return cross_entropy(model(torch.randn(16, 5)), torch.randint(0, 3, (16,)))


@case
def ddp() -> object:
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(model.parameters())
    samples = TensorDataset(torch.randn(64, 5), torch.randint(0, 3, (64,)))
    loader = DataLoader(samples, batch_size=8, sampler=DistributedSampler(samples))
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return model, optimizer


@case
def ddp_no_sync() -> object:
    """Four backwards a step, of which the last one synchronises."""
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for index in range(16):
        with model.no_sync() if index % 4 < 3 else contextlib.nullcontext():
            (loss_of(model) / 4).backward()
        if index % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer


@case
def zero_redundancy() -> object:
    """Each rank's optimizer holds a part of the state and steps an inner optimizer."""
    model = DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-2)
    for _ in range(8):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return model, optimizer.optim.state_dict()


@case
def fsdp2() -> object:
    """Parameters are DTensors, sharded between the ranks."""
    model = Net()
    fully_shard(model.body)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, model, optimizer


@case
def fsdp1() -> object:
    """Parameters are views into one flat tensor whose memory is freed between uses."""
    model = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [param.detach().clone() for param in model.parameters()]


@case
def ddp_compiled() -> object:
    model = DistributedDataParallel(Net())
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        loss_of(compiled).backward()
        optimizer.step()
    return model, optimizer, torch._dynamo.utils.counters["stats"]["unique_graphs"]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found: dict[str, object] = {"rank": rank}
    for name in sys.argv[1:] or list(CASES):
        found[name] = []
        for seed in SEEDS:
            seed_all(seed)  # the same start for all ranks
            seed_all(seed * 10 + rank)
            found[name].append(fingerprint(CASES[name]()))
    dist.barrier()
    dist.destroy_process_group()
    os.write(1, (json.dumps(found) + "\n").encode())  # in one piece: both ranks share the pipe


if __name__ == "__main__":
    main()
