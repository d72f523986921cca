"""Data of the programs: bundled sets, drawn pictures and generated text, always the same."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor


def digits(train: int = 1400) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pictures of digits (N, 1, 8, 8) from 0 to 1 and their labels, then those held back."""
    bunch = load_digits()
    order = np.random.default_rng(3).permutation(len(bunch.target))
    images = torch.tensor(bunch.images[order], dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(bunch.target[order])
    return images[:train], labels[:train], images[1400:], labels[1400:]


def shapes(count: int, seed: int, size: int = 16) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Drawn squares, discs and crosses: images (N, H, W, 3) as bytes, kinds, colours, and which pixels are which kind.

    In a mask 0 is the ground and 1 to 3 are the kinds.
    """
    rng = np.random.default_rng(seed)
    kinds, colours = rng.integers(0, 3, count), rng.integers(0, 3, count)
    centre, radius = rng.uniform(4, size - 4, (count, 2)), rng.uniform(2.5, 4, count)
    rows, columns = np.mgrid[:size, :size]
    down = np.abs(rows[None] - centre[:, 0, None, None])
    across = np.abs(columns[None] - centre[:, 1, None, None])
    reach = radius[:, None, None]
    square = (down <= reach * 0.85) & (across <= reach * 0.85)
    disc = down**2 + across**2 <= reach**2
    cross = ((down <= 1) | (across <= 1)) & (down <= reach) & (across <= reach)
    inside = np.choose(kinds[:, None, None], [square, disc, cross])
    images = rng.uniform(0, 90, (count, size, size, 3))
    for colour in range(3):
        images[colours == colour, :, :, colour] += inside[colours == colour] * 150
    return images.astype(np.uint8), kinds, colours, inside * (kinds[:, None, None] + 1)


def table(count: int, seed: int, features: int = 10) -> tuple[Tensor, Tensor]:
    """A table with a curved response: columns of mean 0 and deviation 1, and a number for each row."""
    made = torch.Generator().manual_seed(seed)
    columns = torch.randn(count, features, generator=made)
    response = columns[:, 0] * 1.5 + columns[:, 1].abs() - columns[:, 2] * columns[:, 3] + columns[:, 4].sin()
    return columns, response + 0.1 * torch.randn(count, generator=made)


_WHO = ("the old miller", "a young sailor", "my neighbour", "the black cat", "our teacher", "the tired doctor")
_DOES = ("counts the boats", "mends a broken chair", "sings in the garden", "looks for the key", "writes a long letter")
_WHEN = ("before sunrise", "every second evening", "while it rains", "in the quiet house", "on the last day of june")


def sentences(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, len(words), count) for words in (_WHO, _DOES, _WHEN)]
    return [f"{_WHO[a]} {_DOES[b]} {_WHEN[c]}." for a, b, c in zip(*parts, strict=True)]


def wrong(scores: Tensor, labels: Tensor) -> float:
    """Share of rows whose highest score is not that of the label; rows with a NaN are wrong."""
    right = (scores.argmax(1) == labels) & scores.isfinite().all(1)
    return 1 - right.float().mean().item()
