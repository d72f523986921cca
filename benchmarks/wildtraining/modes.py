"""Bugs of modes: training where evaluation is meant, and the other way round; what shows only in evaluation."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.wildtraining.case import STUCK, case
from benchmarks.wildtraining.data import blobs, cnn, digits, loader, mlp

_IN_TRAINING = "wrong-mode:evaluation-mode-in-training"
_IN_EVALUATION = "wrong-mode:training-mode-in-evaluation"


def _parts(batch: int = 32):
    inputs, labels = digits()
    return loader(inputs[:1400], labels[:1400], batch=batch), loader(inputs[1400:], labels[1400:], batch=64,
                                                                     shuffle=False)  # fmt: skip


@case(_IN_TRAINING, symptoms=("overfitting",))
def trained_in_evaluation_mode(bug: bool) -> None:
    train, _ = _parts()
    model = cnn(norm=True, dropout=0.3)
    if bug:
        model.eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(4):
        for batch, target in train:
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case(_IN_TRAINING, symptoms=("overfitting",))
def never_back_to_training_mode(bug: bool) -> None:
    train, test = _parts()
    model = cnn(norm=True, dropout=0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(5):
        if not bug:
            model.train()
        for batch, target in train:
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum((model(batch).argmax(1) == target).sum().item() for batch, target in test)
        print("accuracy", right / 397)


@case(_IN_EVALUATION, symptoms=("overfitting",))
def evaluated_with_dropout(bug: bool) -> None:
    train, test = _parts()
    model = nn.Sequential(nn.Flatten(), mlp(64, 64, 10, dropout=0.5))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(5):
        model.train()
        for batch, target in train:
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
        if not bug:
            model.eval()
        with torch.no_grad():
            for batch, target in test:
                functional.cross_entropy(model(batch), target)


@case(_IN_EVALUATION, symptoms=("overfitting",))
def statistics_move_in_evaluation(bug: bool) -> None:
    """The whole test set at once, without a loader."""
    points, labels = blobs()
    model = mlp(20, 48, 5, norm=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(7):
        model.train()
        for batch, target in loader(points[:800], labels[:800]):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
        if not bug:
            model.eval()
        with torch.no_grad():
            output = model(points[800:])
            print(epoch, functional.cross_entropy(output, labels[800:]).item())


@case(
    "wrong-mode:dropout-in-evaluation", _IN_EVALUATION, symptoms=("overfitting",), family="port",
    source="https://github.com/huggingface/transformers/pull/33844",
)  # fmt: skip
def functional_dropout_in_evaluation(bug: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 10)

        def forward(self, inputs):
            hidden = torch.relu(self.first(inputs.flatten(1)))
            hidden = functional.dropout(hidden, 0.4, training=True if bug else self.training)
            return self.second(hidden)

    train, test = _parts()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(5):
        model.train()
        for batch, target in train:
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for batch, target in test:
                functional.cross_entropy(model(batch), target)


@case("overfitting", symptoms=("wrong-mode", "implausible-loss"))
def learned_by_heart(bug: bool) -> None:
    """Labels of the few training points are partly noise; only the validation loss shows it, and nobody logs it."""
    points, labels = blobs(count=1200, features=60)
    count = 96 if bug else 900
    wrong = torch.rand(count, generator=torch.Generator().manual_seed(5)) < (0.4 if bug else 0.0)
    labels[:count] = torch.where(wrong, (labels[:count] + 1) % 5, labels[:count])
    model = mlp(60, 128 if bug else 8, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(100 if bug else 10):
        model.train()
        for batch, target in loader(points[:count], labels[:count]):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for batch, target in loader(points[900:], labels[900:], batch=300, shuffle=False):
                loss = functional.cross_entropy(model(batch), target)
        print(epoch, loss.item())


@case(_IN_TRAINING, symptoms=STUCK)
def norms_left_in_evaluation_mode(bug: bool) -> None:
    """A helper freezes the statistics and is never undone."""
    train, _ = _parts()
    model = nn.Sequential(nn.Flatten(), mlp(64, 64, 64, 10, norm=True))
    if bug:
        model.apply(lambda module: module.eval() if isinstance(module, nn.BatchNorm1d) else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(4):
        for batch, target in train:
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
