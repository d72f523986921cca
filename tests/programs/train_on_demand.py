"""Trains as many steps as each line on stdin asks for; prints what the training left behind at the end."""

from __future__ import annotations

import sys

import torch
from fingerprint import fingerprint, seed_all
from torch import nn

torch.set_num_threads(1)
seed_all(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for line in sys.stdin:
    for _ in range(int(line)):
        loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(line, end="", flush=True)
print(fingerprint(model, optimizer))
