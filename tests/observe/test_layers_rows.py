"""Rows of `layers` and `modules`: their numbers against plain torch, and when they are taken."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from recording import Recording
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

Record = Callable[..., Recording]
COLUMNS = ("norm", "mean", "std", "min", "max", "zero_share", "nan", "inf", "drift", "size")
NAMED = "SELECT step, layer, kind, norm, mean, std, min, max, zero_share, nan, inf, drift, size FROM layers"


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 5), torch.randint(0, 3, (16,))


class Net(nn.Module):
    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.body = nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.reentrant is None:
            return self.head(self.body(x))
        return self.head(checkpoint(self.body, x.requires_grad_(), use_reentrant=self.reentrant))


Key = tuple[int, str, str]


def plain_statistics(tensor: torch.Tensor, start: torch.Tensor | None) -> tuple[float | None, ...]:
    """What a row should say, one statistic at a time."""
    values = tensor.detach().double()
    finite = values[values.isfinite()]
    drift = (values - start.double()).norm().item() if start is not None else None
    moments = (
        (
            finite.norm().item(),
            finite.mean().item(),
            finite.std(correction=0).item(),
            finite.min().item(),
            finite.max().item(),
        )
        if finite.numel()
        else (None,) * 5
    )
    counts = ((values == 0).double().mean().item(), int(values.isnan().sum()), int(values.isinf().sum()))
    return (*moments, *counts, drift, values.numel())


class Twin:
    """Takes the statistics of a training's weights and gradients in plain torch, just before every step."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.start = {name: param.detach().clone() for name, param in model.named_parameters()}
        self.rows: dict[Key, tuple[float | None, ...]] = {}
        self.norms: list[float] = []

    def look(self) -> None:
        step, squares = len(self.norms), 0.0
        for name, param in self.model.named_parameters():
            self.rows[step, name, "weight"] = plain_statistics(param, self.start[name])
            if param.grad is not None:
                self.rows[step, name, "gradient"] = plain_statistics(param.grad, None)
                squares += param.grad.double().square().sum().item()
        self.norms.append(math.sqrt(squares))


def rows_by_key(recording: Recording) -> dict[Key, tuple[float | None, ...]]:
    return {(step, layer, kind): tuple(numbers) for step, layer, kind, *numbers in recording.rows(NAMED)}


def assert_same(seen: tuple[float | None, ...], expected: tuple[float | None, ...]) -> None:
    for column, one, other in zip(COLUMNS, seen, expected, strict=True):
        if one is None or other is None:
            assert one is other, (column, one, other)
        else:
            assert one == pytest.approx(other, rel=1e-5, abs=1e-7, nan_ok=True), column


@pytest.mark.usefixtures("every_step")
def test_sampled_rows_are_what_plain_torch_says(record: Record) -> None:
    recording = record(overhead=1.0)
    model = Net()
    twin = Twin(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(30):
        optimizer.zero_grad()
        x, y = batch()
        cross_entropy(model(x), y).backward()
        twin.look()
        optimizer.step()
    seen = rows_by_key(recording)
    assert len({step for step, _, _ in seen}) >= 5
    assert {key for key in twin.rows if key[0] in {step for step, _, _ in seen}} == set(seen)
    for key, numbers in seen.items():
        assert_same(numbers, twin.rows[key])
    norms = recording.rows("SELECT step, grad_norm FROM steps WHERE grad_norm IS NOT NULL")
    assert len(norms) >= 5
    for step, norm in norms:
        assert norm == pytest.approx(twin.norms[step], rel=1e-6)


@pytest.mark.usefixtures("every_step")
def test_rows_of_big_odd_and_frozen_layers_are_right_too(record: Record) -> None:
    """Over the size of a block, in float64 and bfloat16, with zeros, NaN and infinities, and without a gradient."""
    recording = record(preset="deep", overhead=1.0)
    model = nn.Module()
    model.big = nn.Parameter(torch.randn(300, 301))
    model.wide = nn.Parameter(torch.randn(50, dtype=torch.float64))
    model.short = nn.Parameter(torch.randn(70, dtype=torch.bfloat16))
    model.bad = nn.Parameter(torch.tensor([0.0, math.nan, math.inf, -math.inf, 2.0, 0.0, 3.0]))
    model.hopeless = nn.Parameter(torch.full((4,), math.nan))
    model.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    twin = Twin(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(4):
        optimizer.zero_grad()
        (model.big.square().sum() + model.wide.sum() + model.short.square().sum() + (model.bad * 0).sum()).backward()
        twin.look()
        optimizer.step()
    seen = rows_by_key(recording)
    assert {kind for _, layer, kind in seen if layer == "frozen"} == {"weight", "gradient"}
    for (step, layer, kind), numbers in seen.items():
        if (step, layer, kind) not in twin.rows:
            assert numbers[:-1] == (None,) * 9, "no gradient, no numbers"
        else:
            assert_same(numbers, twin.rows[step, layer, kind])


def test_a_shared_parameter_is_one_row_under_its_first_name(record: Record) -> None:
    recording = record()
    model = nn.ModuleDict({"into": nn.Embedding(7, 4), "out": nn.Linear(4, 7, bias=False)})
    model["out"].weight = model["into"].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model["out"](model["into"](torch.tensor([1, 2]))).sum().backward()
    optimizer.step()
    assert recording.column("SELECT layer FROM layers WHERE kind = 'weight'") == ["into.weight"]


def test_thousands_of_layers_fit(record: Record) -> None:
    recording = record()
    model = nn.ParameterList([nn.Parameter(torch.full((2,), float(index))) for index in range(6000)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch._foreach_norm(list(model))
    for param in model:
        param.grad = torch.ones(2)
    optimizer.step()
    rows = recording.rows("SELECT layer, mean FROM layers WHERE kind = 'weight' ORDER BY mean")
    assert rows == [(str(index), float(index)) for index in range(6000)]


# Presets ---------------------------------------------------------------------------------------------------


def train(model: nn.Module, steps: int = 30) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        x, y = batch()
        cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.usefixtures("every_step")
def test_light_takes_norms_and_no_layers(record: Record) -> None:
    recording = record(preset="light", overhead=1.0)
    train(Net())
    assert recording.rows("SELECT count(*) FROM layers") == [(0,)]
    assert recording.rows("SELECT count(*) FROM modules") == [(0,)]
    assert recording.rows("SELECT count(grad_norm) > 3 FROM steps") == [(True,)]


@pytest.mark.usefixtures("every_step")
def test_standard_measures_drift_of_small_models_only(record: Record) -> None:
    recording = record(overhead=1.0)
    small, big = nn.Linear(4, 1), nn.Linear(3000, 1500)
    for model in (small, big):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(1, model.in_features)).sum().backward()
            optimizer.step()
    assert recording.rows("SELECT count(drift) > 0 FROM layers WHERE optimizer = 1 AND kind = 'weight'") == [(True,)]
    assert recording.rows("SELECT count(*) > 0, count(drift) FROM layers WHERE optimizer = 2") == [(True, 0)]


@pytest.mark.usefixtures("every_step")
def test_deep_adds_the_activations_of_leaf_modules(record: Record) -> None:
    recording = record(preset="deep", overhead=1.0)
    train(Net())
    rows = recording.rows("SELECT DISTINCT layer FROM layers WHERE kind = 'activation' ORDER BY layer")
    assert rows == [("body.0",), ("body.1",), ("body.2",), ("head",)]
    (shares,) = recording.rows("SELECT min(zero_share), max(min), min(min) FROM layers WHERE layer = 'body.1'")
    assert shares[0] > 0 and shares[1:] == (0.0, 0.0), "after a ReLU many are zero and none is negative"
    without = recording.rows("SELECT count(*) FROM layers WHERE kind <> 'activation' AND layer IN ('body.0', 'head')")
    assert without == [(0,)]


@pytest.mark.usefixtures("every_step")
def test_activations_are_those_of_the_sampled_step(record: Record) -> None:
    """Every step's activations are its own number, so a row of another step would show."""
    recording = record(preset="deep", overhead=1.0)
    model = nn.Sequential(nn.Identity())
    anchor = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([anchor], lr=0.0)
    for step in range(40):
        model(anchor * step).sum().backward()
        optimizer.step()
    rows = recording.rows("SELECT step, mean FROM layers WHERE kind = 'activation'")
    assert len(rows) >= 5
    assert all(mean == step for step, mean in rows)


# Modules ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("reentrant", [None, False, True], ids=["plain", "checkpoint", "reentrant checkpoint"])
def test_modules_have_their_names_and_one_forward_each(record: Record, reentrant: bool | None) -> None:
    recording = record(overhead=1.0)
    model = Net(reentrant)
    train(model, 40)
    names = {name or "Net" for name, _ in model.named_modules()}
    traced = recording.column("SELECT DISTINCT step FROM modules")
    assert len(traced) >= 3
    for step in traced:
        rows = recording.rows(f"SELECT stage, module FROM modules WHERE step = {step}")
        assert sorted(module for stage, module in rows if stage == "forward") == sorted(names)
        assert [module for stage, module in rows if stage == "step"] == ["Net"]
        backward = [module for stage, module in rows if stage == "backward"]
        assert "head" in backward and "Net" in backward
        assert set(backward) <= names and len(backward) == len(set(backward))


@pytest.mark.usefixtures("every_step")
def test_the_modules_of_another_model_in_the_same_step_begin_with_its_class(record: Record) -> None:
    recording = record(overhead=1.0)
    model, before, loss = Net(), nn.Sequential(nn.Linear(5, 5), nn.ReLU()), nn.MSELoss()
    wrapped = nn.DataParallel(model)  # on a CPU it only passes on
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        loss(wrapped(before(torch.randn(16, 5))), torch.zeros(16, 3)).backward()
        optimizer.step()
    own = {name or "Net" for name, _ in model.named_modules()}
    found = set(recording.column("SELECT DISTINCT module FROM modules WHERE stage = 'forward'"))
    assert found == {*own, "Sequential", "Sequential.0", "Sequential.1", "MSELoss"}


@pytest.mark.usefixtures("every_step")
def test_module_rows_have_plausible_numbers(record: Record) -> None:
    recording = record(overhead=1.0)
    train(Net(), 40)
    outside = recording.rows(
        "SELECT m.step, m.duration_ms, s.step_ms FROM modules m JOIN steps s USING (step) "
        "WHERE m.duration_ms < 0 OR m.duration_ms > s.step_ms"
    )
    assert outside == []
    assert recording.rows(
        "SELECT DISTINCT allocated_bytes FROM modules WHERE module = 'head' AND stage = 'forward'"
    ) == [(16 * 3 * 4,)]
    assert recording.rows("SELECT count(*) FROM modules WHERE stage = 'forward' AND alive_bytes IS NULL") == [(0,)]


@pytest.mark.usefixtures("every_step")
def test_the_view_for_the_probing_tool_has_the_same_rows(record: Record) -> None:
    recording = record(overhead=1.0)
    train(Net(), 40)
    (counts,) = recording.rows("SELECT (SELECT count(*) FROM modules), (SELECT count(*) FROM python.torch_trace)")
    assert counts[0] == counts[1] > 0
    rows = recording.rows(
        "SELECT step, module, stage, duration, allocated FROM python.torch_trace WHERE stage = 'forward'"
    )
    assert all(duration > 0 and allocated > 0 for *_, duration, allocated in rows)


@pytest.mark.usefixtures("every_step")
def test_evaluation_between_steps_is_not_traced(record: Record) -> None:
    recording = record(overhead=1.0)
    model = Net()
    for _ in range(10):
        train(model, 3)
        with torch.no_grad():
            for _ in range(5):
                model(torch.randn(2, 5))
    calls = recording.rows(
        "SELECT step, count(*) FROM modules WHERE module = 'head' AND stage = 'forward' GROUP BY step"
    )
    assert calls and all(count == 1 for _, count in calls)


# Trouble is sampled at its onset ---------------------------------------------------------------------------


def train_with_losses(losses: list[float]) -> None:
    """A training whose losses are given."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for loss in losses:
        optimizer.zero_grad()
        (model(torch.ones(1, 2)).sum() * 0 + loss).backward()
        optimizer.step()


def quiet_losses(count: int) -> list[float]:
    return [1.0 + 0.01 * (index % 5) for index in range(count)]


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("trouble", [math.nan, math.inf, 100.0, -100.0])
def test_a_loss_that_looks_wrong_is_sampled_at_that_step_whatever_the_budget(record: Record, trouble: float) -> None:
    recording = record(overhead=1e-9)
    train_with_losses([*quiet_losses(100), trouble, *quiet_losses(30)])
    sampled = recording.column("SELECT DISTINCT step FROM layers ORDER BY step")
    assert sampled[0] == 0, "the first step of a new model"
    assert 100 in sampled
    assert len([step for step in sampled if 0 < step < 100]) <= 2, "the budget is tiny"


@pytest.mark.usefixtures("every_step")
def test_a_nan_is_sampled_even_before_normal_is_known(record: Record) -> None:
    recording = record(overhead=1e-9)
    train_with_losses([1.0, 1.0, 1.0, math.nan, 1.0])
    assert recording.column("SELECT DISTINCT step FROM layers ORDER BY step") == [0, 3]


@pytest.mark.usefixtures("every_step")
def test_a_training_that_stays_bad_is_not_sampled_for_ever(record: Record) -> None:
    recording = record(overhead=1e-9)
    train_with_losses([*quiet_losses(40), *[math.nan] * 300])
    sampled = recording.column("SELECT DISTINCT step FROM layers WHERE step >= 40 ORDER BY step")
    assert sampled[0] == 40
    assert 2 <= len(sampled) <= 12


@pytest.mark.usefixtures("every_step")
def test_a_loss_that_only_drifts_rings_no_alarm(record: Record) -> None:
    recording = record(overhead=1e-9)
    train_with_losses([1.0 - 0.001 * index + 0.01 * (index % 5) for index in range(200)])
    assert len(recording.column("SELECT DISTINCT step FROM layers")) <= 4


@pytest.mark.usefixtures("every_step")
def test_a_generous_budget_samples_often_and_a_small_one_seldom(record: Record) -> None:
    counts = []
    for overhead in (1.0, 0.001):
        recording = record(overhead=overhead)
        train(Net(), 100)
        counts.append(len(recording.column("SELECT DISTINCT step FROM layers")))
    assert counts[0] > 4 * counts[1]
    assert counts[1] >= 1
