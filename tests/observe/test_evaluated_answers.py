"""Evaluations that are made once, of maps, or with labels of no and yes, and what is said of their answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from recording import Recording
from torch import Tensor, nn
from torch.nn import functional

from stethos.diagnose.api import diagnose
from stethos.diagnose.finding import Severity
from stethos.observe.answers import answers_of

Record = Callable[..., Recording]
pytestmark = pytest.mark.usefixtures("unhurried")


def said(recording: Recording) -> set[str]:
    recording.close()
    return {one.kind for one in diagnose(recording.path).findings if one.severity > Severity.INFO}


def train(
    model: nn.Module, batch: Callable[[], tuple[Tensor, Tensor]], loss: Callable[..., Tensor], steps: int
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    model.train()
    for _ in range(steps):
        inputs, labels = batch()
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()
        optimizer.step()
    model.eval()


def points(count: int = 64) -> tuple[Tensor, Tensor]:
    labels = torch.randint(0, 4, (count,))
    return 3 * torch.eye(4)[labels] + 0.4 * torch.randn(count, 4), labels


@pytest.mark.parametrize(("shift", "is_found"), [(0, False), (1, True)])
@pytest.mark.parametrize("count", [40, 400])
def test_a_single_evaluation_at_the_end_is_judged_where_it_is_large(
    record: Record, shift: int, is_found: bool, count: int
) -> None:
    recording, model = record(), nn.Linear(4, 4)
    train(model, points, functional.cross_entropy, 120)
    x, y = points(count)
    y = (y + shift) % 4
    with torch.no_grad():
        assert float((model(x).argmax(1) == y).float().mean()) > 0.9 or shift
    kinds = {"classes-renamed", "no-better-than-guessing", "far-below-training", "worse-than-one-answer"}
    assert bool(said(recording) & kinds) == (is_found and count >= 100)


def test_answers_to_the_training_data_at_the_end_are_no_mistake(record: Record) -> None:
    recording, model, (x, y) = record(), nn.Linear(4, 4), points(200)
    train(model, lambda: (x, y), functional.cross_entropy, 60)
    with torch.no_grad():
        functional.cross_entropy(model(x), y)
    assert "evaluated-on-training-data" not in said(recording)


@pytest.mark.parametrize(("is_turned", "kinds"), [(False, set()), (True, {"classes-renamed"})])
def test_maps_whose_classes_are_turned_round_are_noticed(record: Record, is_turned: bool, kinds: set[str]) -> None:
    recording, model = record(), nn.Conv2d(1, 2, 3, padding=1)

    def maps(count: int = 8) -> tuple[Tensor, Tensor]:
        labels = torch.zeros(count, 8, 8, dtype=torch.long)
        labels[:, :4, :4] = 1
        return labels[:, None] + 0.1 * torch.randn(count, 1, 8, 8), labels

    for _ in range(3):
        train(model, maps, functional.cross_entropy, 40)
        x, y = maps(16)
        if is_turned:
            y = 1 - y
        with torch.no_grad():
            assert len(model(x)) == len(y)
    assert said(recording) == kinds


@pytest.mark.parametrize("is_share", [False, True])
def test_labels_of_no_and_yes_are_classes(record: Record, is_share: bool) -> None:
    """Raw outputs far from 0 and 1 are right answers all the same."""
    model = nn.Sequential(nn.Linear(4, 1), *([nn.Sigmoid()] if is_share else []))
    loss = functional.binary_cross_entropy if is_share else functional.binary_cross_entropy_with_logits
    recording = record()

    def batch(count: int = 64) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 4)
        return x, (x[:, :1] > 0).float()

    for _ in range(3):
        train(model, batch, loss, 80)
        x, y = batch(200)
        with torch.no_grad():
            assert len(model(x)) == len(y)

    assert not said(recording)


def test_answers_of_words_and_places_are_counted() -> None:
    words, places = torch.randn(3, 5, 4), torch.randn(3, 4, 5, 2)
    for outputs, labels, axis in ((words, torch.randint(0, 4, (3, 5)), 2), (places, torch.randint(0, 4, (3, 5, 2)), 1)):
        pair = answers_of(outputs, labels)
        assert pair is not None
        assert pair[0].tolist() == outputs.argmax(axis).reshape(-1).tolist()
        assert pair[1].tolist() == labels.reshape(-1).tolist()
    assert answers_of(words, torch.randint(0, 4, (3, 6))) is None
