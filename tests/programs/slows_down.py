"""A training that becomes very slow when a file appears, and ends when another does."""

import sys
import time
from pathlib import Path

import torch

slow, over = (Path(word) for word in sys.argv[1:])
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while not over.exists():
    optimizer.zero_grad()
    model(torch.ones(8, 4)).mean().backward()
    optimizer.step()
    time.sleep(0.5 if slow.exists() else 0.004)
