"""One plain training, recorded: training.py WHAT SEED PATH, where WHAT is balanced, loader, leak or long."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import stethos

_STEPS = 120
_LONG_S = 32.0


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random samples; each takes `delay_s` to load."""

    def __init__(self, count: int, delay_s: float) -> None:
        self.x, self.y = torch.randn(count, 64), torch.randint(0, 10, (count,))
        self.delay_s = delay_s

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.delay_s:
            time.sleep(self.delay_s)
        return self.x[place], self.y[place]


def main() -> None:
    what, seed, path = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    chance = np.random.default_rng([seed, *what.encode()])
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    width = int(chance.integers(512, 1024))
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    delay_s = float(chance.uniform(0.0005, 0.002)) if what == "loader" else 0.0
    kept: list[torch.Tensor] = []
    is_long = what in ("leak", "long")
    leak_mb_per_s = float(chance.uniform(6, 15))
    with stethos.watch(model, dir=path.parent, name=path.name):
        began, steps = time.monotonic(), 0
        while (time.monotonic() - began < _LONG_S) if is_long else (steps < _STEPS):
            for x, y in DataLoader(Samples(32 * 10, delay_s), batch_size=32, shuffle=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                steps += 1
                if is_long:
                    time.sleep(0.05)
                if what == "leak":
                    wanted = leak_mb_per_s * (time.monotonic() - began) * 1e6
                    while sum(one.nbytes for one in kept) < wanted:
                        kept.append(torch.ones(250_000))


if __name__ == "__main__":
    main()
