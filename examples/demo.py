"""Train a small network on handwritten digits: an ordinary program that knows nothing of Stethos.

Somebody made a mistake in it. The accuracy is fine for half of the training, then everything is lost.
"""

from __future__ import annotations

import argparse
import logging

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logger = logging.getLogger("digits")


class DigitNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.LeakyReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.LeakyReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Linear(512, 64), nn.LeakyReLU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images).flatten(1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    torch.set_num_threads(1)

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(images[:1500], labels[:1500]), batch_size=32, shuffle=True)
    model = DigitNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=epochs // 2, gamma=10)

    for epoch in range(epochs):
        for batch, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        scheduler.step()
        with torch.no_grad():
            accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
        logger.info("epoch %2d  loss %.4f  test accuracy %.3f", epoch, loss.item(), accuracy)


if __name__ == "__main__":
    main()
