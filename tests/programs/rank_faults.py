"""A small job of two ranks in which rank 1 does something else: the kind of fault is the argument."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

FAULT = sys.argv[1]
if FAULT == "early" and os.environ["RANK"] == "1":
    raise FileNotFoundError("no data at part-1")
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inner = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
model: nn.Module = inner
if FAULT == "sharded":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world,))
    fully_shard(inner[0], mesh=mesh)
    fully_shard(inner, mesh=mesh)
else:
    model = DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.Generator().manual_seed(100 + rank)
for step in range(128 if FAULT == "flip" else 40):
    inputs = torch.randn(16, 20, generator=data)
    labels = inputs[:, :4].argmax(1)
    outputs = (inner if FAULT == "bypass" and step > 10 else model)(inputs)
    optimizer.zero_grad()
    loss = cross_entropy(outputs, labels)
    loss.backward()
    if FAULT == "clip" and rank == 1:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    if FAULT == "flip" and rank == 1 and step == 100:
        with torch.no_grad():
            inner[0].weight.view(torch.int32)[0, 0] ^= 1 << 20  # the lowest bits are rounded away by and by
    metric = loss.detach().reshape(1)
    if FAULT == "dtype" and rank == 1 and step == 30:
        metric = metric.double()
    if not (FAULT == "skipped" and rank == 1 and step == 30):
        dist.all_reduce(metric)
if FAULT in ("none", "sharded"):
    dist.barrier()  # else gloo may abort one rank as the other hangs up on its last call
dist.destroy_process_group()
