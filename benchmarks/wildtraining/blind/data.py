"""Small data sets of these programs; all are drawn or come with scikit-learn."""

from __future__ import annotations

import torch
from torch import Tensor

TEXT = (
    "the quick brown fox jumps over the lazy dog while the small grey cat sleeps near the warm stove and dreams "
    "in the morning the baker opens his shop and the smell of fresh bread fills the narrow street before the sun is up "
    "a ship that sails at dawn will reach the harbour by night if the wind is kind and the captain knows the coast "
    "she wrote a long letter to her brother who lives on an island where it rains in winter and the hills are green "
)  # fmt: skip


def letters(count: int, length: int, seed: int = 5) -> Tensor:
    """Pieces of a text as numbers from 0 to 26."""
    made = torch.Generator().manual_seed(seed)
    codes = torch.tensor([0 if one == " " else ord(one) - 96 for one in TEXT * 3])
    starts = torch.randint(0, len(codes) - length, (count,), generator=made)
    return torch.stack([codes[start : start + length] for start in starts.tolist()])


def padded(count: int = 640, length: int = 14, words: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    """Sentences of several lengths padded with 0, their lengths, and which of two groups of words is more frequent."""
    made = torch.Generator().manual_seed(6)
    tokens = torch.randint(1, words, (count, length), generator=made)
    lengths = torch.randint(3, length + 1, (count,), generator=made)
    tokens[torch.arange(length) >= lengths[:, None]] = 0
    score = ((tokens > 0) & (tokens < words // 2)).sum(1) - (tokens >= words // 2).sum(1)
    return tokens, lengths, (score > 0).long()


def split_digits(seed: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pictures of digits, 8 x 8, to train with and to test with."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images, labels = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1, torch.tensor(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    images, labels = images[order], labels[order]
    return images[:1400], labels[:1400], images[1400:], labels[1400:]


def tabular(count: int = 1200, features: int = 12, classes: int = 4, seed: int = 8) -> tuple[Tensor, Tensor]:
    """Rows whose class depends on them in a curved way."""
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=made)
    hidden = torch.tanh(x @ torch.randn(features, 16, generator=made) / features**0.5)
    scores = hidden @ torch.randn(16, classes, generator=made) + 0.1 * torch.randn(count, classes, generator=made)
    return x, scores.argmax(1)


def curve(count: int = 900, seed: int = 9) -> tuple[Tensor, Tensor]:
    """Six inputs and a smooth target of unit scale, as a column."""
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=made)
    y = (
        torch.sin(x[:, :1])
        + 0.5 * x[:, 1:2] * x[:, 2:3]
        + 0.3 * x[:, 3:4]
        + 0.05 * torch.randn(count, 1, generator=made)
    )
    return x, y / y.std()


def masks(count: int = 300, side: int = 16) -> tuple[Tensor, Tensor]:
    """Noisy pictures of one disk each, and where it is."""
    made = torch.Generator().manual_seed(10)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    centre = torch.randint(4, side - 4, (count, 2), generator=made)
    size = 2.5 + 2 * torch.rand(count, generator=made)
    far = ((rows - centre[:, :1, None]) ** 2 + (columns - centre[:, 1:, None]) ** 2).float().sqrt()
    inside = (far < size[:, None, None]).float()[:, None]
    return inside + 0.4 * torch.randn(count, 1, side, side, generator=made) - 0.2, inside


def accuracy_gap(scores: Tensor, labels: Tensor) -> float:
    """The share of wrong answers."""
    return float((scores.argmax(-1) != labels).float().mean())
