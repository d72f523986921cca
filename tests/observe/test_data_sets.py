"""Data sets that change in place, and evaluations on samples of the training: what is said of real trainings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from recording import Recording
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from stethos.diagnose.api import diagnose
from stethos.diagnose.finding import Severity
from stethos.observe.data_sets import DataSets

Record = Callable[..., Recording]
pytestmark = pytest.mark.usefixtures("unhurried")


def said(recording: Recording) -> set[str]:
    recording.close()
    found = diagnose(recording.path).findings
    return {one.kind for one in found if one.severity > Severity.INFO and one.name in ("odd-batch", "odd-evaluation")}


def table(count: int = 192) -> TensorDataset:
    inputs = torch.randn(count, 8)
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def train(
    model: nn.Module, data: Dataset[tuple[Tensor, ...]], *held: Dataset[tuple[Tensor, ...]], passes: int = 4
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(passes):
        model.train()
        for given, answer in DataLoader(data, 32, shuffle=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(given), answer).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for one in held:
                for given, _ in DataLoader(one, 64):
                    model(given)


class Noisy(Dataset[tuple[Tensor, ...]]):
    """Adds noise to each sample that is asked for, to a copy of it or to what is stored."""

    def __init__(self, data: TensorDataset, *, in_place: bool) -> None:
        self.inputs, self.labels = data.tensors
        self.in_place = in_place

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, place: int) -> tuple[Tensor, ...]:
        sample = self.inputs[place] if self.in_place else self.inputs[place].clone()
        sample += 0.2 * torch.randn(sample.shape)
        return sample, self.labels[place]


@pytest.mark.parametrize(("in_place", "kinds"), [(True, {"data-changed"}), (False, set())])
def test_data_that_change_in_place_are_noticed(record: Record, in_place: bool, kinds: set[str]) -> None:
    recording = record()
    train(nn.Linear(8, 2), Noisy(table(), in_place=in_place))
    assert said(recording) == kinds


def test_data_that_are_replaced_or_filled_in_have_not_drifted(record: Record) -> None:
    recording = record()
    data = table()

    class Buffer(Noisy):
        def __getitem__(self, place: int) -> tuple[Tensor, ...]:
            if place % 2:
                self.inputs[place] = torch.randn(8)
            return self.inputs[place].clone(), self.labels[place]

    train(nn.Linear(8, 2), Buffer(data, in_place=False))
    assert said(recording) == set()


@pytest.mark.parametrize("how", ["slices", "subsets", "copies"])
@pytest.mark.parametrize("is_shared", [True, False])
def test_evaluations_on_samples_of_the_training_are_noticed(record: Record, how: str, is_shared: bool) -> None:
    recording = record()
    data = table()
    first, last = list(range(0 if is_shared else 64, 192)), list(range(64))
    if how == "slices":
        inputs, labels = data.tensors
        parts = TensorDataset(inputs[first[0] :], labels[first[0] :]), TensorDataset(inputs[:64], labels[:64])
    elif how == "subsets":
        parts = Subset(data, first), Subset(data, last)  # type: ignore[assignment]
    else:
        parts = TensorDataset(*data[torch.tensor(first)]), TensorDataset(*data[torch.tensor(last)])
    train(nn.Linear(8, 2), *parts)
    assert said(recording) == ({"evaluated-on-training-data"} if is_shared else set())


def test_how_well_training_data_are_answered_may_be_of_interest_beside_others(record: Record) -> None:
    recording = record()
    data = table(256)
    part, held = Subset(data, range(192)), Subset(data, range(192, 256))
    train(nn.Linear(8, 2), part, part, Subset(data, range(64)), held)
    assert said(recording) == set()


@pytest.mark.parametrize(("is_one", "kinds"), [(True, {"evaluated-on-training-data"}), (False, set())])
def test_one_model_for_all_folds_is_noticed(record: Record, is_one: bool, kinds: set[str]) -> None:
    recording = record()
    data, model = table(), nn.Linear(8, 2)
    for fold in range(3):
        held = range(64 * fold, 64 * fold + 64)
        rest = [place for place in range(192) if place not in held]
        model = model if is_one else nn.Linear(8, 2)
        train(model, Subset(data, rest), Subset(data, held), passes=2)
    assert said(recording) == kinds


def test_samples_that_are_too_simple_to_be_told_apart_say_nothing() -> None:
    data, model = DataSets(), nn.Linear(2, 2)
    states = TensorDataset(torch.randint(0, 3, (50, 2)).float())
    data.training_pass(states, model)
    data.evaluation_pass(TensorDataset(torch.randint(0, 3, (20, 2)).float()), model)
    assert not data.facts
