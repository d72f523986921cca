"""Models of the third set. Each has two layers of one shape, which a careless state dict can swap."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


class Vit(nn.Module):
    """Nine patches of 4 x 4 pixels, which overlap, one block of attention."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, 16, 4, stride=3)
        self.first = nn.Parameter(0.02 * torch.randn(1, 1, 16))
        self.places = nn.Parameter(0.1 * torch.randn(1, 10, 16))
        self.before, self.between = nn.LayerNorm(16), nn.LayerNorm(16)
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.first.expand(len(h), -1, -1), h], 1) + self.places
        n = self.before(h)
        h = h + nn.functional.scaled_dot_product_attention(self.query(n), self.key(n), self.value(n))
        h = h + self.narrow(nn.functional.gelu(self.wide(self.between(h))))
        return self.head(h.mean(1))


class Depthwise(nn.Module):
    """Convolutions within channels and across them, with channels reweighted by what the whole image shows."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 12, 3, stride=2, padding=1)
        self.within = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.across = nn.Conv2d(12, 12, 1)
        self.squeeze, self.excite = nn.Linear(12, 12), nn.Linear(12, 12)
        self.head = nn.Linear(12 * 25, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.silu(self.stem(x))
        h = h + nn.functional.silu(self.across(self.within(h)))
        share = torch.sigmoid(self.excite(torch.relu(self.squeeze(h.mean((2, 3))))))
        return self.head((h * share[:, :, None, None]).flatten(1))


class DeepFm(nn.Module):
    """A factorisation machine beside a small network."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.factors = nn.Parameter(0.1 * torch.randn(inputs, 6))
        self.stem = nn.Linear(inputs, 16)
        self.body, self.more = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16 + 6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        pairs = ((x @ self.factors) ** 2 - (x**2) @ self.factors**2) / 2
        h = torch.relu(self.more(torch.relu(self.body(torch.relu(self.stem(x))))))
        return self.head(torch.cat([h, torch.tanh(pairs / x.shape[1] ** 0.5)], 1))


class Gated(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(inputs, 20), nn.Linear(inputs, 20)
        self.back = nn.Linear(20, 20)
        self.norm = nn.RMSNorm(20)
        self.head = nn.Linear(20, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.value(x) * nn.functional.silu(self.gate(x))
        return self.head(self.norm(self.value(x) + self.back(h)))


class Experts(nn.Module):
    """Three small networks, and a fourth that says how much each counts."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.router = nn.Linear(inputs, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(inputs, 10), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(10, outputs)

    def forward(self, x: Tensor) -> Tensor:
        shares = torch.softmax(self.router(x), 1)
        h = torch.stack([expert(x) for expert in self.experts], 1)
        return self.head((shares.unsqueeze(2) * h).sum(1))


class SeriesConv(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 10, 5, stride=2, padding=2)
        self.body, self.more = nn.Conv1d(10, 10, 3, padding=1), nn.Conv1d(10, 10, 3, padding=2, dilation=2)
        self.head = nn.Linear(10 * 12, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.stem(x.unsqueeze(1)))
        h = h + torch.relu(self.body(h))
        return self.head((h + torch.relu(self.more(h))).flatten(1))


class SeriesGru(nn.Module):
    """Three values at a time."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 12, num_layers=2, batch_first=True)
        self.head = nn.Linear(12, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x.reshape(len(x), -1, 3))[0][:, -1])


class GluConv(nn.Module):
    def __init__(self, words: int, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 16)
        self.value, self.gate = nn.Conv1d(16, 20, 3, padding=1), nn.Conv1d(16, 20, 3, padding=1)
        self.head = nn.Linear(20, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens).transpose(1, 2)
        return self.head((self.value(h) * torch.sigmoid(self.gate(h))).mean(2) * 2)


class Pooled(nn.Module):
    """Two learnt questions that attend to words at their places; padding is masked."""

    def __init__(self, words: int, length: int, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 16)
        self.places = nn.Embedding(length, 16)
        self.questions = nn.Parameter(0.3 * torch.randn(2, 16))
        self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens) + 0.3 * self.places(torch.arange(tokens.shape[1]))
        scores = self.questions @ self.key(h).transpose(1, 2) / 4
        scores = scores.masked_fill((tokens == 0).unsqueeze(1), -1e4)
        return self.head(self.norm((torch.softmax(scores, 2) @ self.value(h)).flatten(1)))


class BiGru(nn.Module):
    """Two words at a time, from both ends."""

    def __init__(self, words: int, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 12)
        self.gru = nn.GRU(24, 12, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.gru(self.words(tokens).reshape(len(tokens), -1, 24))[0].amax(1))


def model_of(name: str, shape: tuple[int, ...], outputs: int, words: int) -> nn.Module:
    """A fresh model for inputs of a shape; `words` is the size of the vocabulary."""
    size = int(torch.tensor(shape).prod())
    match name:
        case "vit":
            return Vit(shape[0], outputs)
        case "depthwise":
            return Depthwise(shape[0], outputs)
        case "weight-norm":
            layers = [("flat", nn.Flatten()), ("stem", weight_norm(nn.Linear(size, 20))), ("s1", nn.SiLU())]
            layers += [("body", weight_norm(nn.Linear(20, 20))), ("s2", nn.SiLU())]
            layers += [("more", weight_norm(nn.Linear(20, 20))), ("s3", nn.SiLU()), ("head", nn.Linear(20, outputs))]
            return nn.Sequential(OrderedDict(layers))
        case "deep-fm":
            return DeepFm(size, outputs)
        case "gated":
            return Gated(size, outputs)
        case "experts":
            return Experts(size, outputs)
        case "series-conv":
            return SeriesConv(outputs)
        case "series-gru":
            return SeriesGru(outputs)
        case "glu-conv":
            return GluConv(words, outputs)
        case "pooled":
            return Pooled(words, shape[0], outputs)
        case "bi-gru":
            return BiGru(words, outputs)
    raise ValueError(name)
