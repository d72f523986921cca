"""Trains a small model and counts complete optimizer steps in a mapped file: count_steps.py COUNTER [STEPS].

Without STEPS until it is killed; if nobody does, because a test has failed, it ends by itself after ten minutes.
"""

from __future__ import annotations

import itertools
import mmap
import signal
import sys

import torch
from torch import nn

signal.alarm(600)
torch.manual_seed(0)
torch.set_num_threads(1)
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 8)
done = memoryview(mapped).cast("q")
steps = range(int(sys.argv[2])) if len(sys.argv) > 2 else itertools.count()
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
inputs, targets = torch.randn(32, 16), torch.randn(32, 1)
for step in steps:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    done[0] = step + 1
print("".join(f"{value:.9g} " for value in model[2].weight.flatten().tolist()))
