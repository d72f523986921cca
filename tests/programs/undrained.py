"""Trains once bare and once per run named, each watched: undrained.py DIRECTORY NAME ...; prints a fingerprint each."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from fingerprint import fingerprint, seed_all
from torch import nn
from torch.nn.functional import mse_loss

import stethos


def train() -> str:
    seed_all(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(300):
        optimizer.zero_grad()
        mse_loss(model(torch.randn(16, 5)), torch.randn(16, 1)).backward()
        optimizer.step()
        stethos.log(step_done=step)
    return fingerprint(model, optimizer)


torch.set_num_threads(1)
print(train())
for name in sys.argv[2:]:
    with stethos.watch(dir=Path(sys.argv[1]), name=name, overhead=1.0):
        print(train())
