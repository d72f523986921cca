"""Small data sets that a small model learns within a second."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def blobs(count: int = 960, features: int = 20, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Points around the centres of classes, of unit scale."""
    made = torch.Generator().manual_seed(1)
    labels = torch.randint(0, classes, (count,), generator=made)
    centres = torch.randn(classes, features, generator=made) * 1.2
    points = centres[labels] + torch.randn(count, features, generator=made)
    return (points - points.mean(0)) / points.std(0), labels


def digits() -> tuple[Tensor, Tensor]:
    """Pictures of 8 x 8 in one channel, from 0 to 1."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.images, dtype=torch.float32)[:, None] / 16, torch.tensor(found.target)


def line(count: int = 768, features: int = 8) -> tuple[Tensor, Tensor]:
    """A noisy linear relation; targets of shape [count, 1] and unit scale."""
    made = torch.Generator().manual_seed(2)
    inputs = torch.randn(count, features, generator=made)
    targets = inputs @ torch.randn(features, 1, generator=made) + 0.1 * torch.randn(count, 1, generator=made)
    return inputs, targets / targets.std()


def words(count: int = 512, length: int = 12, vocabulary: int = 24) -> Tensor:
    """Sentences in which each word mostly decides the next."""
    made = torch.Generator().manual_seed(3)
    following = torch.randperm(vocabulary, generator=made)
    rows = [torch.randint(0, vocabulary, (count,), generator=made)]
    for _ in range(length - 1):
        noise = torch.randint(0, vocabulary, (count,), generator=made)
        is_noise = torch.rand(count, generator=made) < 0.2
        rows.append(torch.where(is_noise, noise, following[rows[-1]]))
    return torch.stack(rows, 1)


def loader(*tensors: Tensor, batch: int = 32, shuffle: bool = True, **options: object) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, **options)


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU, norm: bool = False, dropout: float = 0.0) -> nn.Sequential:
    """Layers of these widths, the first of them the inputs."""
    layers: list[nn.Module] = []
    for place, (before, after) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(before, after))
        if place < len(widths) - 2:
            layers += [nn.BatchNorm1d(after)] if norm else []
            layers.append(act())
            layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)


def cnn(norm: bool = False, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8) if norm else nn.Identity(), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(dropout) if dropout else nn.Identity(), nn.Linear(128, 10),
    )  # fmt: skip
