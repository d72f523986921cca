"""Attention written out by hand, with a bug and without: what is said of real trainings with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recording import Recording
from torch import Tensor, nn
from torch.nn import functional

from stethos.diagnose.api import diagnose
from stethos.diagnose.finding import Severity

Record = Callable[..., Recording]
pytestmark = pytest.mark.usefixtures("unhurried")
_OURS = ("odd-graph", "odd-batch", "wrong-loss", "unoptimized-parameters")


def said(recording: Recording) -> set[str]:
    """Kinds of warnings and errors about the program."""
    recording.close()
    return {one.kind for one in diagnose(recording.path).findings if one.severity > Severity.INFO and one.name in _OURS}


class Attention(nn.Module):
    """Heads over a sequence of vectors, as in a tutorial; each argument puts one bug in."""

    def __init__(
        self, size: int = 64, heads: int = 2, *, is_scaled: bool = True, is_viewed: bool = False,
        is_merged: bool = False, dim: int = -1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.heads, self.is_scaled, self.is_viewed, self.is_merged, self.dim = (
            heads, is_scaled, is_viewed, is_merged, dim)  # fmt: skip

    def _split(self, given: Tensor) -> Tensor:
        batch, length, size = given.shape
        if self.is_viewed:
            return given.view(batch, self.heads, length, size // self.heads)
        return given.view(batch, length, self.heads, size // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(-2, -1)
        if self.is_scaled:
            scores = scores / math.sqrt(query.shape[-1])
        mixed = scores.softmax(self.dim) @ value
        if not self.is_merged:
            mixed = mixed.transpose(1, 2)
        return self.out(mixed.reshape(x.shape))


class Reader(nn.Module):
    """Classifies sequences of words."""

    def __init__(self, length: int = 10, size: int = 64, pool: int = 1, **options: Any) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, size), nn.Embedding(length, size)
        self.attention, self.answer, self.pool = Attention(size, **options), nn.Linear(size, 2), pool

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        return self.answer((x + self.attention(x)).mean(self.pool))


def train(model: nn.Module, length: int = 10, batch: int = 16, passes: int = 3) -> None:
    words = torch.randint(0, 20, (6 * batch, length))
    data = torch.utils.data.TensorDataset(words, (words[:, 0] > 9).long())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(passes):
        for given, answer in torch.utils.data.DataLoader(data, batch, shuffle=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(given), answer).backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({}, set()),
        ({"is_scaled": False}, {"scores-not-scaled"}),
        ({"is_viewed": True}, {"heads-mixed"}),
        ({"is_merged": True}, {"heads-mixed"}),
        ({"dim": 1}, {"softmax-over-heads"}),
    ],
)
def test_attention_that_is_written_wrongly_is_noticed(record: Record, options: dict[str, Any], kinds: set[str]) -> None:
    recording = record()
    train(Reader(**options))
    assert said(recording) == kinds


def test_scores_that_are_small_anyway_are_not_accused(record: Record) -> None:
    recording = record()
    model = Reader(is_scaled=False)
    for layer in (model.attention.query, model.attention.key):
        nn.init.normal_(layer.weight, std=0.02)
    train(model)
    assert said(recording) == set()


@pytest.mark.parametrize(("pool", "kinds"), [(1, set()), (0, {"pooled-over-samples"})])
def test_a_mean_over_the_batch_is_noticed_where_it_is_as_long_as_the_sequence(
    record: Record, pool: int, kinds: set[str]
) -> None:
    recording = record()
    train(Reader(16, pool=pool), length=16)
    assert said(recording) == kinds


@pytest.mark.parametrize("how", ["attention", "transformer", "recurrent", "plain", "collated"])
def test_a_mean_over_places_that_come_first_is_right(record: Record, how: str) -> None:
    """As many places as samples: the shapes are those of the mistake."""

    class PlacesFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places, self.answer = nn.Embedding(20, 16), nn.Embedding(16, 16), nn.Linear(16, 2)
            self.layer: nn.Module = nn.Linear(16, 16)
            if how == "attention":
                self.layer = nn.MultiheadAttention(16, 2)
            elif how == "transformer":
                self.layer = nn.TransformerEncoderLayer(16, 2, 32)
            elif how == "recurrent":
                self.layer = nn.LSTM(16, 16)

        def forward(self, words: Tensor) -> Tensor:
            x = self.words(words)
            x = (x if how == "collated" else x.transpose(0, 1)) + self.places(torch.arange(16))[:, None]
            mixed = self.layer(x, x, x) if how == "attention" else self.layer(x)
            mixed = mixed[0] if isinstance(mixed, tuple) else mixed
            return self.answer((x + torch.relu(mixed)).mean(0))

    recording = record()
    words = torch.randint(0, 20, (96, 16))
    data = list(zip(words, (words[:, 0] > 9).long(), strict=True))
    model = PlacesFirst()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def turned(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return torch.stack([given for given, _ in samples], 1), torch.stack([answer for _, answer in samples])

    for _ in range(3):
        for given, answer in torch.utils.data.DataLoader(
            data, 16, shuffle=True, collate_fn=turned if how == "collated" else None
        ):
            optimizer.zero_grad()
            functional.cross_entropy(model(given), answer).backward()
            optimizer.step()
    assert said(recording) == set()
