"""Data sets that change in place, and evaluations on samples of the training: what is said of real trainings."""

from __future__ import annotations

import copy
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from recording import Recording
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

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


@pytest.mark.parametrize("how", ["refilled", "shuffled"])
def test_data_that_are_made_anew_or_shuffled_in_place_have_not_drifted(how: str) -> None:
    """Each column has a mean of its own, as pixels and sensors have, so any two samples look alike."""
    seen, means = DataSets(), 10 + torch.arange(8.0)
    data = TensorDataset(torch.randn(128, 8) + means)
    for _ in range(4):
        seen.training_pass(data, None)
        (held,) = data.tensors
        held[:] = held[torch.randperm(128)] if how == "shuffled" else torch.randn(128, 8) + means
    assert not seen.changes


def test_a_model_that_begins_anew_in_place_has_seen_no_earlier_fold(record: Record) -> None:
    recording = record()
    data, model = table(), nn.Linear(8, 2)
    start = copy.deepcopy(model.state_dict())
    for fold in range(3):
        held = range(64 * fold, 64 * fold + 64)
        model.load_state_dict(start)
        train(model, Subset(data, [place for place in range(192) if place not in held]), Subset(data, held), passes=2)
    assert said(recording) == set()


def test_what_was_trained_on_before_may_be_evaluated_as_a_whole(record: Record) -> None:
    """One task after another: how much of the first one is forgotten is of interest."""
    recording = record()
    data, model = table(256), nn.Linear(8, 2)
    first, second, held = Subset(data, range(96)), Subset(data, range(96, 192)), Subset(data, range(192, 256))
    train(model, first, first, held, passes=2)
    train(model, second, first, held, passes=2)
    assert said(recording) == set()


def test_places_in_another_data_set_are_not_taken_for_those_of_one_that_is_gone() -> None:
    class Files(Dataset[int]):
        """Nothing of it lies in memory."""

        def __len__(self) -> int:
            return 100

    seen, model, data = DataSets(), nn.Linear(2, 2), Files()
    seen.training_pass(Subset(data, range(50)), model)
    other = Files()
    seen._known[id(other)] = seen._known.pop(id(data))  # as if it lay where the first one was
    seen.evaluation_pass(Subset(other, range(40)), model)
    assert not seen.facts
    seen.evaluation_pass(Subset(data, range(40)), model)
    assert not seen.facts  # it has a new number, too


def test_subsets_of_subsets_of_many_samples_are_followed() -> None:
    class Files(Dataset[int]):
        def __len__(self) -> int:
            return 60_000

    whole: Dataset[int] = Files()
    part, _ = random_split(whole, [50_000, 10_000])
    inner, held = random_split(part, [40_000, 10_000])
    seen, model = DataSets(), nn.Linear(2, 2)
    seen.training_pass(inner, model)
    seen.evaluation_pass(held, model)
    assert not seen.facts
    seen.evaluation_pass(Subset(inner, range(500)), model)
    assert not seen.facts  # the other one is not shared
    seen = DataSets()
    seen.training_pass(inner, model)
    seen.evaluation_pass(Subset(inner, torch.arange(500)), model)  # type: ignore[arg-type]
    assert seen.facts["held_in_training"] == 1


def test_windows_of_a_series_that_share_their_past_are_not_the_same_samples() -> None:
    class Windows(Dataset[Tensor]):
        def __init__(self, series: Tensor) -> None:
            self.series = series

        def __len__(self) -> int:
            return len(self.series) - 60

    series = torch.randn(400, 8)
    seen, model = DataSets(), nn.Linear(2, 2)
    seen.training_pass(Windows(series[:360]), model)
    seen.evaluation_pass(Windows(series[300:]), model)  # 60 steps before its own 40
    assert not seen.facts


@pytest.mark.parametrize("how", ["subset", "transposed", "half"])
def test_no_copy_of_data_is_made(how: str) -> None:
    """They may fill most of the memory."""
    if how == "half":
        data: Dataset[tuple[Tensor, ...]] = TensorDataset(torch.zeros(2000, 4096, dtype=torch.bfloat16))
    else:
        inputs = np.random.default_rng(0).random((2000, 64, 64)).astype(np.float32)
        tensor = torch.from_numpy(inputs)
        whole = TensorDataset(tensor.transpose(1, 2) if how == "transposed" else tensor)
        data = Subset(whole, range(1500))
    seen = DataSets()
    tracemalloc.start()
    try:
        seen.training_pass(data, None)
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_what_lies_in_a_file_is_not_read(tmp_path: Path) -> None:
    held = np.memmap(tmp_path / "held", np.float32, "w+", shape=(64, 16))
    held[:] = np.random.default_rng(0).random((64, 16))

    class Mapped(Dataset[Tensor]):
        def __init__(self) -> None:
            self.inputs = np.asarray(held)

        def __len__(self) -> int:
            return 64

    seen = DataSets()
    seen.training_pass(Mapped(), None)
    assert not seen._numbers
    assert not seen._present
