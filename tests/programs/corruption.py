"""A job of equal ranks of which the last has a bit flipped at a step: in a weight, an activation, or nowhere.

python corruption.py none|weight|activation STEPS
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

FAULT, STEPS = sys.argv[1], int(sys.argv[2])
AT = 2 * STEPS // 3
calls = 0


class Layer(nn.Module):
    """Its output has one wrong bit where the step is the faulty one, and only once."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global calls
        y = self.inner(x)
        if FAULT == "activation" and rank == world - 1 and step == AT and not calls:
            calls += 1
            wrong = y.detach().clone()
            wrong.view(torch.int32)[3, 3] ^= 1 << 20
            y = y + (wrong - y).detach()
        return y


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inner = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), Layer(), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 4))
model = DistributedDataParallel(inner)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.Generator().manual_seed(100 + rank)
for step in range(STEPS):
    inputs = torch.randn(16, 20, generator=data)
    optimizer.zero_grad()
    cross_entropy(model(inputs), inputs[:, :4].argmax(1)).backward()
    optimizer.step()
    if FAULT == "weight" and rank == world - 1 and step == AT:
        with torch.no_grad():
            inner[5].weight.view(torch.int32)[1, 2] ^= 1 << 20
dist.destroy_process_group()
