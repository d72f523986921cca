"""A training to be looked into while it runs: live_training.py globals|main DIRECTORY [STEPS PAUSE_S].

Its names are globals of the program or locals of `main()`. It trains until the file `stop` is in the directory (or
for that many steps, or for as many as a file of that name will say) and then prints a fingerprint of its parameters;
while there is a file `stall` its data set waits, as for a slow disk.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def steps_in(text: str) -> int:
    """A number, or the file that it will be in."""
    while not text.isdigit():
        time.sleep(0.01)
        text = Path(text).read_text() if Path(text).exists() else text
    return int(text)


DIRECTORY = Path(sys.argv[2])
STEPS = steps_in(sys.argv[3]) if len(sys.argv) > 3 else 0
PAUSE_S = float(sys.argv[4]) if len(sys.argv) > 4 else 0.005


class Trainer:
    grad_clip = 0.5
    current_step = 0


class SlowDisk(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        self.wait_for_disk()
        return torch.full((8,), index / 64), torch.tensor([index % 2], dtype=torch.float32)

    def wait_for_disk(self) -> None:
        while (DIRECTORY / "stall").exists():
            time.sleep(0.01)  # the disk is slow


def fingerprint_of(model: nn.Module) -> str:
    numbers = b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())
    return hashlib.sha256(numbers).hexdigest()


def setup() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any], Trainer]:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.001)
    return model, optimizer, DataLoader(SlowDisk(), batch_size=8, shuffle=True), Trainer()


def is_over(step: int) -> bool:
    return step >= STEPS if STEPS else (DIRECTORY / "stop").exists()


def main() -> None:
    model, optimizer, train_loader, trainer = setup()
    torch.save({"step": 41, "model": model.state_dict()}, "checkpoint.pt")
    marker = 0
    while not is_over(trainer.current_step):
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()  # main steps here
            trainer.current_step += 1
            if marker > 0:
                (DIRECTORY / "marker").write_text(str(marker))
            time.sleep(PAUSE_S)
    print(fingerprint_of(model))


if sys.argv[1] == "main":
    main()
else:
    model, optimizer, train_loader, trainer = setup()
    torch.save({"step": 41, "model": model.state_dict()}, "checkpoint.pt")
    marker = 0
    while not is_over(trainer.current_step):
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()  # globals step here
            trainer.current_step += 1
            if marker > 0:
                (DIRECTORY / "marker").write_text(str(marker))
            time.sleep(PAUSE_S)
    print(fingerprint_of(model))
