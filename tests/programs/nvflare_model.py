"""The model that `nvflare_job.py` has trained. NVFlare makes it anew on the server: it brings its own seed."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.body = nn.Linear(6, 8)
            self.norm = nn.BatchNorm1d(8)
            self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)).relu())
