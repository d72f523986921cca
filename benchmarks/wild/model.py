"""Models of the wild benchmark, written as people write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Lora(nn.Module):
    """A frozen layer with a trained correction of low rank."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Linear(inputs, 4, bias=False)
        self.up = nn.Linear(4, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


class LoraNet(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = Lora(inputs, 32)
        self.head = nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x.flatten(1))))


class Cnn(nn.Module):
    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(8 * 16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))


class Residual(nn.Module):
    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.stem(x))
        h = h + torch.relu(self.conv(self.norm(h)))
        return self.head(h.amax((2, 3)))


class TabTransformer(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(inputs, 16))
        self.shift = nn.Parameter(0.3 * torch.randn(inputs, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.unsqueeze(-1) * self.weight + self.shift).mean(1))


class Bag(nn.Module):
    def __init__(self, words: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.EmbeddingBag(words, 24)
        self.head = nn.Linear(24, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(tokens))


class TextTransformer(nn.Module):
    def __init__(self, words: int, length: int, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 16)
        self.places = nn.Embedding(length, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.layer(h).mean(1))


class Gru(nn.Module):
    def __init__(self, words: int, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 16)
        self.gru = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.gru(self.words(tokens))[0].mean(1))


class TextCnn(nn.Module):
    def __init__(self, words: int, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 16)
        self.conv = nn.Conv1d(16, 24, 3)
        self.head = nn.Linear(24, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(self.words(tokens).transpose(1, 2))).amax(2))


class Lstm(nn.Module):
    def __init__(self, words: int, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.head = nn.Linear(24, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(tokens))[1][0][-1])


class Attention(nn.Module):
    """A bag of words in which each word has a learnt weight."""

    def __init__(self, words: int, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 24)
        self.weight = nn.Linear(24, 1)
        self.head = nn.Linear(24, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens)
        return self.head((torch.softmax(self.weight(h), 1) * h).sum(1))


class Mixer(nn.Module):
    """Patches of 2 x 2 pixels, mixed over places and over channels."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, 16, 2, stride=2)
        self.places = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.channels = nn.Linear(16, 16)
        self.head = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2)
        h = h + torch.relu(self.places(h))
        h = h.transpose(1, 2)
        return self.head((h + torch.relu(self.channels(self.norm(h)))).mean(1))


class Highway(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Linear(inputs, 24)
        self.body = nn.Linear(24, 24)
        self.gate = nn.Linear(24, 24)
        self.head = nn.Linear(24, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.stem(x.flatten(1)))
        share = torch.sigmoid(self.gate(h))
        return self.head(share * torch.tanh(self.body(h)) + (1 - share) * h)


class Squared(nn.Module):
    """A linear model with squares."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(2 * inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([x, x.clamp(-3, 3) ** 2], 1))


def model_of(name: str, shape: tuple[int, ...], outputs: int, words: int) -> nn.Module:
    """A fresh model for inputs of a shape."""
    size = int(torch.tensor(shape).prod())
    match name:
        case "linear":
            return nn.Sequential(nn.Flatten(), nn.Linear(size, outputs))
        case "mlp":
            return nn.Sequential(nn.Flatten(), nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, outputs))
        case "batchnorm":
            return nn.Sequential(
                nn.Flatten(), nn.Linear(size, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, outputs)
            )
        case "layernorm":
            return nn.Sequential(
                nn.Flatten(), nn.Linear(size, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 24), nn.GELU(),
                nn.Dropout(0.1), nn.Linear(24, outputs),
            )  # fmt: skip
        case "lora":
            return LoraNet(size, outputs)
        case "cnn":
            return Cnn(shape[0], outputs)
        case "residual":
            return Residual(shape[0], outputs)
        case "tab-transformer":
            return TabTransformer(size, outputs)
        case "bag":
            return Bag(words, outputs)
        case "transformer":
            return TextTransformer(words, shape[0], outputs)
        case "gru":
            return Gru(words, outputs)
        case "text-cnn":
            return TextCnn(words, outputs)
        case "lstm":
            return Lstm(words, outputs)
        case "attention":
            return Attention(words, outputs)
        case "mixer":
            return Mixer(shape[0], outputs)
        case "highway":
            return Highway(size, outputs)
        case "squared":
            return Squared(size, outputs)
    raise ValueError(name)
