"""Models of the fifth set. The last module of each that has weights is its head."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class Additive(nn.Module):
    """A small net for each input alone; what they say is added up."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inner = nn.Conv1d(inputs, 6 * inputs, 1, groups=inputs)
        self.outer = nn.Conv1d(6 * inputs, 3 * inputs, 1, groups=inputs)
        self.head = nn.Linear(3 * inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.inner(x.flatten(1).unsqueeze(2)))
        return self.head(functional.relu(self.outer(h)).squeeze(2))


class Waves(nn.Module):
    """Sines instead of ramps."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stem, self.body = nn.Linear(inputs, 24), nn.Linear(24, 24)
        self.head = nn.Linear(24, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sin(self.body(torch.sin(1.5 * self.stem(x.flatten(1))))))


class Bilinear(nn.Module):
    """Two views of the inputs, multiplied."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(inputs, 20), nn.Linear(inputs, 20)
        self.norm = nn.LayerNorm(40)
        self.head = nn.Linear(40, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        left, right = self.left(x), self.right(x)
        return self.head(self.norm(torch.cat([left * torch.sigmoid(right), left], 1)))


class Modulated(nn.Module):
    """A few inputs say how the others are scaled and moved."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.few = max(2, inputs // 4)
        self.body, self.scale = nn.Linear(inputs - self.few, 20), nn.Linear(self.few, 40)
        self.head = nn.Linear(20, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        gain, move = self.scale(x[:, : self.few]).chunk(2, 1)
        return self.head(functional.silu(self.body(x[:, self.few :]) * (1 + gain) + move))


class Selu(nn.Sequential):
    """A stack that keeps its scale without norms."""

    def __init__(self, inputs: int, outputs: int) -> None:
        widths = [inputs, 24, 24, 16]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.SELU()]
            nn.init.normal_(layers[-2].weight, 0, before**-0.5)  # type: ignore[arg-type]
        super().__init__(*layers, nn.Linear(16, outputs))


class Inception(nn.Module):
    """Filters of three sizes side by side, over images or signals."""

    def __init__(self, channels: int, outputs: int, dimensions: int) -> None:
        super().__init__()
        conv = nn.Conv2d if dimensions == 2 else nn.Conv1d
        self.pool = functional.max_pool2d if dimensions == 2 else functional.max_pool1d
        self.wide = nn.ModuleList(conv(channels, 6, size, padding=size // 2) for size in (1, 3, 5))
        self.body = conv(18, 12, 3, padding=1)
        self.head = nn.Linear(12 * (9 if dimensions == 2 else 4), outputs)
        self.squeeze = nn.AdaptiveAvgPool2d(3) if dimensions == 2 else nn.AdaptiveAvgPool1d(4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([torch.relu(one(x)) for one in self.wide], 1)
        return self.head(self.squeeze(torch.relu(self.body(self.pool(h, 2)))).flatten(1))


class Excited(nn.Module):
    """Maps that are weighted by what all of the image says about them."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(channels, 12, 3, stride=2, padding=1), nn.Conv2d(12, 16, 3, padding=1)
        self.down, self.up = nn.Linear(16, 6), nn.Linear(6, 16)
        self.head = nn.Linear(16 * 9, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.hardswish(self.body(functional.hardswish(self.stem(x))))
        gate = torch.sigmoid(self.up(torch.relu(self.down(h.mean((2, 3))))))
        return self.head(functional.adaptive_avg_pool2d(h * gate[:, :, None, None], 3).flatten(1))


class Local(nn.Module):
    """A layer whose weights differ from place to place."""

    def __init__(self, channels: int, side: int, outputs: int) -> None:
        super().__init__()
        self.across = (side - 4) // 2 + 1
        self.weight = nn.Parameter(0.15 * torch.randn(self.across**2, channels * 16, 4) / channels**0.5)
        self.bias = nn.Parameter(torch.zeros(self.across**2, 4))
        self.head = nn.Linear(4 * self.across**2, outputs)

    def forward(self, x: Tensor) -> Tensor:
        pieces = functional.unfold(x, 4, stride=2).transpose(1, 2)  # [batch, places, pixels]
        return self.head(functional.gelu(torch.einsum("bpi,pio->bpo", pieces, self.weight) + self.bias).flatten(1))


class Recurrence(nn.Module):
    """A linear memory with a rate of forgetting for each unit; tokens if it is given a number of words."""

    def __init__(self, channels: int, outputs: int, words: int = 0) -> None:
        super().__init__()
        self.enter = nn.Embedding(words, 24) if words else nn.Linear(channels, 24)
        self.decay = nn.Parameter(torch.linspace(-1, 3, 24))
        self.gate = nn.Linear(24, 24)
        self.head = nn.Linear(48, outputs)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            x = (x.unsqueeze(1) if x.dim() == 2 else x).transpose(1, 2)
        u = self.enter(x)
        keep = torch.sigmoid(self.decay)
        memory = torch.zeros_like(u[:, 0])
        total = torch.zeros_like(memory)
        for at in range(u.shape[1]):
            memory = keep * memory + (1 - keep) * u[:, at] * 2
            total = total + torch.sigmoid(self.gate(memory)) * torch.tanh(memory)
        return self.head(torch.cat([memory, total / u.shape[1] * 2], 1))


class Sloped(nn.Module):
    """Attention that favours near tokens by a slope, without numbered places."""

    def __init__(self, words: int, outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 24)
        self.ask = nn.Linear(24, 72)
        self.norm = nn.LayerNorm(24)
        self.mix = nn.Linear(24, 24)
        self.head = nn.Linear(48, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens)
        q, k, v = self.ask(h).unflatten(2, (3, 3, 8)).permute(2, 0, 3, 1, 4)
        place = torch.arange(tokens.shape[1])
        far = (place[:, None] - place[None]).clamp_min(0) + 2.0 * (place[None] > place[:, None])
        scores = q @ k.transpose(2, 3) / 8**0.5 - far * torch.tensor([0.1, 0.5, 1.5])[:, None, None]
        h = self.norm(h + self.mix((scores.softmax(3) @ v).transpose(1, 2).flatten(2)))
        return self.head(torch.cat([h.amax(1), h[:, -1]], 1))


class Averaged(nn.Module):
    """The mean of letters and of pairs of neighbours, and layers over it."""

    def __init__(self, words: int, outputs: int) -> None:
        super().__init__()
        self.words, self.pair = nn.Embedding(words, 20), nn.Conv1d(20, 28, 2)
        self.body = nn.Linear(48, 24)
        self.head = nn.Linear(24, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens)
        pairs = functional.relu(self.pair(h.transpose(1, 2))).mean(2)
        return self.head(functional.relu(self.body(torch.cat([h.mean(1), pairs], 1))))


class Spectral(nn.Module):
    """The strength of each frequency, and the signal itself in coarse steps."""

    def __init__(self, channels: int, length: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Linear(channels * (length // 2 + 1 + length // 2), 28)
        self.head = nn.Linear(28, outputs)

    def forward(self, x: Tensor) -> Tensor:
        power = torch.log1p(torch.fft.rfft(x).abs())
        coarse = functional.avg_pool1d(x, 2)
        return self.head(functional.elu(self.body(torch.cat([power, coarse], 2).flatten(1))))


class Patches(nn.Module):
    """Pieces of a signal, each brought to a code by the same layer, then mixed over time."""

    def __init__(self, channels: int, length: int, outputs: int) -> None:
        super().__init__()
        self.code, self.over = nn.Linear(6 * channels, 10), nn.Linear(length // 6, length // 6)
        self.head = nn.Linear(10 * (length // 6), outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1) if x.dim() == 2 else x
        h = functional.gelu(self.code(x.unflatten(2, (-1, 6)).permute(0, 2, 1, 3).flatten(2)))
        return self.head((h + functional.gelu(self.over(h.transpose(1, 2))).transpose(1, 2)).flatten(1))


class Decomposed(nn.Module):
    """A smooth course and what is left of it, each carried on by a layer."""

    def __init__(self, length: int, outputs: int) -> None:
        super().__init__()
        self.course, self.rest = nn.Linear(length, outputs), nn.Linear(length, 12)
        self.head = nn.Linear(12, outputs)

    def forward(self, x: Tensor) -> Tensor:
        smooth = functional.avg_pool1d(functional.pad(x.unsqueeze(1), (3, 3), "replicate"), 7, 1).squeeze(1)
        return self.course(smooth) + self.head(torch.tanh(self.rest(x - smooth)))


def model_of(name: str, shape: tuple[int, ...], outputs: int, words: int) -> nn.Module:
    """A fresh model for inputs of a shape; `words` is the size of the vocabulary, 0 where inputs are numbers."""
    size = int(torch.tensor(shape).prod())
    channels, length = (shape[0], shape[-1]) if len(shape) > 1 else (1, size)
    match name:
        case "additive":
            return Additive(size, outputs)
        case "waves":
            return Waves(size, outputs)
        case "bilinear":
            return Bilinear(size, outputs)
        case "modulated":
            return Modulated(size, outputs)
        case "selu":
            return Selu(size, outputs)
        case "spread":  # of a value: where it lies, and the logarithm of how far from there it may be
            return nn.Sequential(nn.Linear(size, 24), nn.CELU(), nn.Linear(24, 16), nn.CELU(), nn.Linear(16, 2))
        case "inception":
            return Inception(channels, outputs, len(shape) - 1)
        case "excited":
            return Excited(channels, outputs)
        case "local":
            return Local(channels, length, outputs)
        case "recurrence":
            return Recurrence(channels, outputs, words)
        case "sloped":
            return Sloped(words, outputs)
        case "averaged":
            return Averaged(words, outputs)
        case "spectral":
            return Spectral(channels, length, outputs)
        case "patches":
            return Patches(channels, length, outputs)
        case "decomposed":
            return Decomposed(size, outputs)
    raise ValueError(name)
