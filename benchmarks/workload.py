"""The trainings that are measured: small ones, where a fixed cost per step shows most, and a larger one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

Note = Callable[[int, torch.Tensor], None]


@dataclass(slots=True)
class Training:
    """A model with what it is trained on."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: DataLoader[tuple[torch.Tensor, ...]]
    steps_done: int = 0
    _batches: Iterator[tuple[torch.Tensor, torch.Tensor]] | None = None

    def train(self, steps: int, note: Note | None) -> None:
        """Some more steps; `note` is what people add between backward and step to see something."""
        if self._batches is None:
            self._batches = self._endless()
        model, optimizer, batches = self.model, self.optimizer, self._batches
        for _ in range(steps):
            inputs, labels = next(batches)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            if note is not None:
                note(self.steps_done, loss)
            optimizer.step()
            self.steps_done += 1

    def _endless(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield from self.loader


def mlp() -> Training:
    """32-64-10 with batches of 32, as a client in federated tutorials."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return _training(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(4096, 32), batch=32)


def cnn() -> Training:
    """Two convolutions on 28x28 images, batches of 32."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return _training(model, optimizer, torch.randn(2048, 1, 28, 28), batch=32)


class _Transformer(nn.Module):
    """10.8 M parameters: 6 layers of width 384 over bytes."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True, norm_first=True)
        self.embedding = nn.Embedding(256, 384)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(384, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))  # type: ignore[no-any-return]


def transformer() -> Training:
    """A small batch, so that a step takes some hundred milliseconds on one core."""
    model = _Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return _training(model, optimizer, torch.randint(0, 256, (512, 64)), batch=4)


def _training(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, *, batch: int) -> Training:
    labels = torch.randint(0, 10, (len(inputs),))
    return Training(model, optimizer, DataLoader(TensorDataset(inputs, labels), batch_size=batch, shuffle=True))


WORKLOADS: dict[str, Callable[[], Training]] = {"mlp": mlp, "cnn": cnn, "transformer": transformer}
