"""Small models and data sets: each trains in about a second on one core."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import nn

Data = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # training inputs and targets, the same to test


@cache
def digits() -> Data:
    """Digits as 64 numbers from 0 to 1."""
    found = load_digits()
    return _parted(torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target))


@cache
def images() -> Data:
    """Digits as pictures of 8 x 8."""
    inputs, targets, test_inputs, test_targets = digits()
    return inputs.view(-1, 1, 8, 8), targets, test_inputs.view(-1, 1, 8, 8), test_targets


@cache
def rows() -> Data:
    """Digits as sequences of 8 rows."""
    inputs, targets, test_inputs, test_targets = digits()
    return inputs.view(-1, 8, 8), targets, test_inputs.view(-1, 8, 8), test_targets


@cache
def diabetes() -> Data:
    """Regression with noise; inputs and targets of unit variance."""
    found = load_diabetes()
    inputs = torch.tensor(found.data, dtype=torch.float32)
    targets = torch.tensor(found.target, dtype=torch.float32)
    return _parted(inputs / inputs.std(0), ((targets - targets.mean()) / targets.std()).unsqueeze(1))


@cache
def raw_diabetes() -> Data:
    """The same with targets from 25 to 346."""
    inputs, _, test_inputs, _ = diabetes()
    targets = torch.tensor(load_diabetes().target, dtype=torch.float32).unsqueeze(1)
    _, shuffled, _, test = _parted(targets, targets)
    return inputs, shuffled, test_inputs, test


@cache
def wave() -> Data:
    """A smooth function of two numbers, without noise."""
    inputs = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)) * 4 - 2
    return _parted(inputs, (torch.sin(2 * inputs[:, :1]) * torch.cos(inputs[:, 1:])))


@cache
def tokens() -> Data:
    """Sequences of 12 out of 40 words; the target is the most frequent group of words."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 40, (3000, 12), generator=generator)
    return _parted(inputs, nn.functional.one_hot(inputs // 10, 4).sum(1).argmax(1))


def _parted(inputs: torch.Tensor, targets: torch.Tensor) -> Data:
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))
    inputs, targets, part = inputs[order], targets[order], len(inputs) * 4 // 5
    return inputs[:part], targets[:part], inputs[part:], targets[part:]


def logistic() -> nn.Module:
    return nn.Linear(64, 10)


def mlp(
    *widths: int, inputs: int = 64, outputs: int = 10, act: type[nn.Module] = nn.ReLU, norm: bool = False,
    dropout: float = 0.0,
) -> nn.Module:  # fmt: skip
    layers: list[nn.Module] = []
    for width in widths or (64,):
        layers += [nn.Linear(inputs, width), *([nn.BatchNorm1d(width)] if norm else []), act()]
        layers += [nn.Dropout(dropout)] if dropout else []
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def cnn(norm: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), *([nn.BatchNorm2d(8)] if norm else []), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), *([nn.BatchNorm2d(16)] if norm else []), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class Residual(nn.Module):
    """Blocks that add to what comes in."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
            for _ in range(blocks)
        )
        self.head = nn.Linear(8, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        state = self.stem(inputs)
        for block in self.blocks:
            state = state + block(state)
        return self.head(state.relu().mean((2, 3)))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A recurrent network over the rows of a picture."""

    def __init__(self, kind: Callable[..., nn.Module], hidden: int = 32) -> None:
        super().__init__()
        self.cell = kind(8, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(inputs)[0][:, -1])  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Two layers of attention over words."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(inputs)).mean(1))  # type: ignore[no-any-return]


class Bag(nn.Module):
    """The mean of word vectors, then a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(inputs).mean(1))  # type: ignore[no-any-return]
