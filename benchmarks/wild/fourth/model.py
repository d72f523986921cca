"""Models of the fourth set. The last module of each that has weights is its head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Maxout(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Linear(inputs, 3 * 16)
        self.body = nn.Linear(16, 3 * 12)
        self.head = nn.Linear(12, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x.flatten(1)).unflatten(1, (16, 3)).amax(2)
        return self.head(self.body(h).unflatten(1, (12, 3)).amax(2))


class SoftTree(nn.Module):
    """Three trees of depth three that send a sample down both ways, by shares."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.splits = nn.Linear(inputs, 3 * 7)
        self.leaves = nn.Linear(3 * 8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        right = torch.sigmoid(2 * self.splits(x.flatten(1))).unflatten(1, (3, 7))
        shares = torch.ones_like(right[:, :, :1])
        for level in range(3):
            at = right[:, :, 2**level - 1 : 2 ** (level + 1) - 1]
            shares = torch.stack([shares * (1 - at), shares * at], 3).flatten(2)
        return self.leaves(2 * shares.flatten(1))


class Cross(nn.Module):
    """Each layer multiplies the inputs into what the last one made."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, inputs), nn.Linear(inputs, inputs)
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1).clamp(-4, 4)
        h = x + 0.3 * x * self.first(x)
        return self.head(h + 0.3 * torch.tanh(x) * self.second(h).clamp(-20, 20))


class Prototypes(nn.Module):
    """The nearer a sample comes to a class's learnt point, the likelier is the class."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stem, self.embed = nn.Linear(inputs, 24), nn.Linear(24, 8)
        self.points = nn.Parameter(torch.randn(outputs, 8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(functional.elu(self.stem(x.flatten(1))))
        return -(h.unsqueeze(1) - self.points).square().sum(2)


class RandomFeatures(nn.Module):
    """Fixed random waves of the inputs, which travel with the model, under a trained layer."""

    waves: Tensor
    phases: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("waves", torch.randn(inputs, 64) / (1.5 * inputs**0.5))
        self.register_buffer("phases", 6.2832 * torch.rand(64))
        self.head = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(1.4 * torch.cos(x.flatten(1) @ self.waves + self.phases))


class DenseConv(nn.Module):
    """Each convolution sees all maps before it."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 8, 3, padding=1)
        self.second, self.third = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)
        self.head = nn.Linear(24 * 9, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.max_pool2d(torch.relu(self.stem(x)), 2)
        h = torch.cat([h, torch.relu(self.second(h))], 1)
        h = torch.cat([h, torch.relu(self.third(h))], 1)
        return self.head(functional.max_pool2d(h, 2).flatten(1))


class CoordConv(nn.Module):
    """Convolutions that are told where they are, with each image's maps brought to one scale."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels + 2, 12, 3, stride=2, padding=1)
        self.norm = nn.InstanceNorm2d(12, affine=True)
        self.body = nn.Conv2d(12, 12, 3, padding=1)
        self.head = nn.Linear(12 * 9, outputs)

    def forward(self, x: Tensor) -> Tensor:
        line = torch.linspace(-1, 1, x.shape[-1])
        where = torch.stack([line.expand(x.shape[-1], -1), line.expand(x.shape[-1], -1).t()])
        h = functional.leaky_relu(self.norm(self.stem(torch.cat([x, where.expand(len(x), -1, -1, -1)], 1))))
        return self.head(functional.avg_pool2d(functional.leaky_relu(self.body(h)), 2).flatten(1))


class FourierMix(nn.Module):
    """Tokens mixed by a Fourier transform, without attention."""

    def __init__(self, words: int, length: int, outputs: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, 16), nn.Parameter(0.1 * torch.randn(length, 16))
        self.before, self.after = nn.LayerNorm(16), nn.LayerNorm(16)
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens) + self.places
        h = self.before(h + torch.fft.fft2(h).real / tokens.shape[1])
        h = self.after(h + self.narrow(functional.gelu(self.wide(h))))
        return self.head(h.amax(1))


class HashedPairs(nn.Module):
    """Words and pairs of neighbours, whose numbers are hashed into one table."""

    def __init__(self, words: int, outputs: int) -> None:
        super().__init__()
        self.words, self.pairs = nn.EmbeddingBag(words, 16, padding_idx=0), nn.EmbeddingBag(512, 16, padding_idx=0)
        self.body = nn.Linear(32, 24)
        self.head = nn.Linear(24, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        hashed = (tokens[:, :-1] * 7919 + tokens[:, 1:] * 104729) % 512
        return self.head(torch.tanh(self.body(torch.cat([self.words(tokens), self.pairs(hashed)], 1))))


class Elman(nn.Module):
    def __init__(self, words: int, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 12)
        self.rnn = nn.RNN(12, 20, batch_first=True)
        self.head = nn.Linear(40, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.rnn(self.words(tokens))[0]
        return self.head(torch.cat([h.mean(1), h.amax(1)], 1))


def _channels(x: Tensor) -> Tensor:
    """A series is a signal of one channel."""
    return x.unsqueeze(1) if x.dim() == 2 else x


class ResidualSeries(nn.Module):
    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Conv1d(channels, 12, 5, stride=2, padding=2)
        self.norm, self.again = nn.GroupNorm(3, 12), nn.GroupNorm(3, 12)
        self.first, self.second = nn.Conv1d(12, 12, 3, padding=1), nn.Conv1d(12, 12, 3, padding=1)
        self.head = nn.Linear(24, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.stem(_channels(x)))
        h = h + torch.relu(self.first(self.norm(h)))
        h = h + torch.relu(self.second(self.again(h)))
        return self.head(torch.cat([h.mean(2), h.amax(2)], 1))


class GruAttend(nn.Module):
    """Four instants at a time; what the last step asks for is looked up in all."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.gru = nn.GRU(4 * channels, 16, batch_first=True)
        self.ask = nn.Linear(16, 16)
        self.head = nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        steps = _channels(x).unflatten(2, (-1, 4)).permute(0, 2, 1, 3).flatten(2)
        h = self.gru(steps)[0]
        weights = torch.softmax((h * self.ask(h[:, -1:])).sum(2, keepdim=True) / 4, 1)
        return self.head(torch.cat([h[:, -1], (weights * h).sum(1)], 1))


class Causal(nn.Module):
    """Convolutions that look back only, ever farther."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv1d(12 if place else channels, 12, 3, dilation=2**place) for place in range(3)
        )
        self.head = nn.Linear(24, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = _channels(x)
        for place, layer in enumerate(self.layers):
            made = functional.elu(layer(functional.pad(h, (2 * 2**place, 0))))
            h = made + h if place else made
        return self.head(torch.cat([h[:, :, -1], h.mean(2)], 1))


class Basis(nn.Module):
    """Two blocks: each explains a part of the series, takes it off, and adds its forecast."""

    def __init__(self, length: int, outputs: int) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(nn.Linear(length, 20) for _ in range(2))
        self.backs = nn.ModuleList(nn.Linear(20, length) for _ in range(2))
        self.aheads = nn.ModuleList(nn.Linear(20, outputs) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        answer = torch.zeros(())
        for body, back, ahead in zip(self.bodies, self.backs, self.aheads, strict=True):
            h = torch.relu(body(x))
            x = x - back(h)
            answer = answer + ahead(h)
        return answer


def model_of(name: str, shape: tuple[int, ...], outputs: int, words: int) -> nn.Module:
    """A fresh model for inputs of a shape; `words` is the size of the vocabulary."""
    size = int(torch.tensor(shape).prod())
    channels = shape[0] if len(shape) > 1 else 1
    match name:
        case "maxout":
            return Maxout(size, outputs)
        case "soft-tree":
            return SoftTree(size, outputs)
        case "cross":
            return Cross(size, outputs)
        case "prototypes":
            return Prototypes(size, outputs)
        case "random-features":
            return RandomFeatures(size, outputs)
        case "dense-conv":
            return DenseConv(channels, outputs)
        case "coord-conv":
            return CoordConv(channels, outputs)
        case "fourier-mix":
            return FourierMix(words, size, outputs)
        case "hashed-pairs":
            return HashedPairs(words, outputs)
        case "elman":
            return Elman(words, outputs)
        case "residual-1d":
            return ResidualSeries(channels, outputs)
        case "gru-attend":
            return GruAttend(channels, outputs)
        case "causal":
            return Causal(channels, outputs)
        case "basis":
            return Basis(size, outputs)
        case "log-rate":  # its answer is the logarithm of a rate
            return nn.Sequential(nn.Linear(size, 24), nn.Softplus(), nn.Linear(24, 16), nn.Softplus(), nn.Linear(16, 1))
        case "quantile":  # the tenth, the half and nine tenths
            return nn.Sequential(nn.Linear(size, 24), nn.Mish(), nn.Linear(24, 16), nn.Mish(), nn.Linear(16, 3))
    raise ValueError(name)
