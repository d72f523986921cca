"""Keeps every step's output, as programs do by mistake: leak.py STEPS"""

from __future__ import annotations

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []


def train_step(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    optimizer.zero_grad()
    outputs = model(inputs)  # made here
    loss = outputs.square().mean()
    loss.backward()
    optimizer.step()
    return loss, outputs


for _ in range(int(sys.argv[1])):
    loss, outputs = train_step(torch.randn(512, 8))
    history.append((loss.item(), outputs))  # kept here
