"""Histograms of gradients and weights: counts against NumPy, when they are taken, and that nothing comes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from recording import Recording
from torch import nn

from stethos.observe.budget import SampleBudget
from stethos.observe.histogram import BUCKETS, Elements, HistogramSampler

Record = Callable[..., Recording]
COUNTS = ", ".join(f"b{number:02d}" for number in range(1, BUCKETS + 1))


def counted(*tensors: torch.Tensor | None) -> list[tuple[float, float, list[int]]]:
    """Low end, high end and counts of tensors; those without elements are left out."""
    elements = Elements([*tensors, *[None] * len(tensors)], list(range(len(tensors))))
    table, order = elements.counted(), np.argsort(elements.named()[0])
    return [(*column[:2].tolist(), np.nan_to_num(column[2:]).astype(int).tolist()) for column in table.T[order]]


def plain(numbers: np.ndarray) -> tuple[float, float, list[int]]:
    """The same by NumPy alone."""
    numbers = numbers.astype(np.float64).ravel()
    numbers = numbers[np.isfinite(numbers)]
    low = max(numbers.min(), numbers.mean() - 4 * numbers.std())
    high = min(numbers.max(), numbers.mean() + 4 * numbers.std())
    counts, _ = np.histogram(np.clip(numbers, low, high), BUCKETS, (low, high))
    return low, high, counts.tolist()


def assert_close(one: tuple[float, float, list[int]], other: tuple[float, float, list[int]]) -> None:
    assert one[:2] == pytest.approx(other[:2], rel=1e-6)
    assert sum(one[2]) == sum(other[2])
    assert np.abs(np.array(one[2]) - other[2]).max() <= 1  # an element on an edge


def tensors() -> Iterator[torch.Tensor]:
    torch.manual_seed(3)
    yield torch.randn(20, 40)
    yield torch.rand(7) - 3
    yield torch.randn(30, 20).t()
    yield torch.randn(500, dtype=torch.float64) * 1e-12
    yield torch.cat([torch.randn(900), torch.tensor([1e4])])  # one far away
    yield torch.cat([torch.randn(50), torch.tensor([math.nan, math.inf, -math.inf])])
    yield torch.randn(64, dtype=torch.bfloat16)
    yield torch.randn(8, 3, 5, 5).to(memory_format=torch.channels_last)


def test_counts_are_what_numpy_says() -> None:
    given = list(tensors())
    for tensor, seen in zip(given, counted(*given), strict=False):
        assert_close(seen, plain(tensor.double().numpy()))


@pytest.mark.parametrize("order", [1, -1])
def test_tensors_do_not_disturb_each_other(order: int) -> None:
    given = [one for one in tensors() if one.dtype is torch.float32][::order]
    assert counted(*given) == [counted(one)[0] for one in given]


def test_what_has_no_finite_element_has_no_counts_and_one_value_has_one_bucket() -> None:
    nothing, same = counted(torch.full((5,), math.nan), torch.full((9,), 2.5))
    assert math.isnan(nothing[0])
    assert same == (2.5, 2.5, [9, *[0] * (BUCKETS - 1)])
    assert counted(None, torch.empty(0), torch.empty(3, device="meta")) == []


def test_huge_and_tiny_numbers_are_counted_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    for numbers in ([3e38, -3e38, 1.0], [1e-45, 2e-45, 0.0]):
        ((low, high, counts),) = counted(torch.tensor(numbers))
        assert low <= high
        assert sum(counts) == 3
    ((_, _, counts),) = counted(torch.tensor([1.7e308, -1.7e308, 0.0], dtype=torch.float64))
    assert sum(counts) == 3
    assert not recwarn.list


def test_of_a_big_tensor_a_thousand_elements_stand_for_all() -> None:
    torch.manual_seed(1)
    big = torch.randn(700, 900)
    ((low, high, counts),) = counted(big)
    assert 900 <= sum(counts) <= 3000
    assert (low, high) == pytest.approx((-3.5, 3.5), abs=0.6)
    expected = np.histogram(np.clip(big.numpy(), low, high), BUCKETS, (low, high))[0] / big.numel()
    assert np.abs(np.array(counts) / sum(counts) - expected).max() < 0.05


def test_columns_of_a_matrix_are_all_seen() -> None:
    """A stride that divides the width would see the same columns in every row."""
    columns = torch.arange(1024.0).repeat(512, 1)
    ((low, high, counts),) = counted(columns)
    assert (low, high) == pytest.approx((0, 1023), abs=10)
    assert min(counts) > 0


@pytest.mark.usefixtures("every_step")
def test_rows_tell_layer_kind_and_step(record: Record) -> None:
    recording = record(overhead=1.0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    model[1].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    known = {}
    for step in range(40):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        for name, param in model.named_parameters():
            known[step, name, "weight"] = plain(param.detach().numpy())
            if param.grad is not None:
                known[step, name, "gradient"] = plain(param.grad.numpy())
        optimizer.step()
    rows = recording.rows(f"SELECT step, layer, kind, low, high, {COUNTS} FROM histograms ORDER BY t_ns")
    steps = {row[0] for row in rows}
    assert len(steps) >= 5
    assert {row[:3] for row in rows} == {key for key in known if key[0] in steps}
    for step, layer, kind, low, high, *counts in rows:
        assert_close((low, high, list(counts)), known[step, layer, kind])


def test_they_become_rarer_as_the_training_goes_on() -> None:
    sampler = HistogramSampler(SampleBudget(1.0))
    taken = [step for step in range(100_000) if sampler.is_due(step, 1)]
    assert taken[:60] == list(range(60))
    assert len(taken) < 700
    late = [after - before for before, after in zip(taken[-5:], taken[-4:], strict=False)]
    assert min(late) > 1000


def test_two_optimizers_that_take_turns_are_both_looked_at() -> None:
    sampler = HistogramSampler(SampleBudget(1.0))
    taken = [step for step in range(5_000) if sampler.is_due(step, 2)]
    assert abs(sum(step % 2 for step in taken) - len(taken) / 2) <= 1


def test_none_is_taken_that_cannot_be_afforded() -> None:
    poor = SampleBudget(1.0, saved_ns=10.0, cost_ns=11.0)
    assert not any(HistogramSampler(poor).is_due(step, 1) for step in range(1, 100))
    assert not HistogramSampler(None).is_due(0, 1)


@pytest.mark.usefixtures("every_step")
def test_the_light_preset_takes_none(record: Record) -> None:
    recording = record(preset="light", overhead=1.0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
    assert recording.rows("SELECT * FROM histograms") == []


@pytest.mark.usefixtures("every_step")
def test_the_training_ends_with_the_same_bits(record: Record) -> None:
    def trained() -> list[torch.Tensor]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(25):
            optimizer.zero_grad()
            model(torch.randn(4, 1, 8, 8)).logsumexp(1).sum().backward()
            optimizer.step()
        return [*(param.detach().clone() for param in model.parameters()), torch.rand(3)]

    bare = trained()
    recording = record(overhead=1.0)
    observed = trained()
    assert len(recording.rows("SELECT DISTINCT step FROM histograms")) >= 5
    assert all(torch.equal(one, other) for one, other in zip(bare, observed, strict=True))
