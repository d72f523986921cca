"""One row per optimizer step, with the right numbers, in all the ways people train."""

from __future__ import annotations

import copy
import gc
import inspect
import itertools
import logging
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import drainers_of, wait_until
from recording import Recording, touched
from torch import nn
from torch._dynamo import trace_rules
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

import stethos
from stethos.observe import hotpath
from stethos.observe import step_recorder as step_module
from stethos.observe.step_recorder import StepRecorder
from stethos.record.place import RunPlace

Record = Callable[..., Recording]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


LAYERS = ["body.0.weight", "body.0.bias", "head.weight", "head.bias"]


def batch(size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 5), torch.randint(0, 3, (size,))


def samples(count: int = 32) -> TensorDataset:
    return TensorDataset(*batch(count))


def loss_of(model: nn.Module) -> torch.Tensor:
    x, y = batch()
    return cross_entropy(model(x), y)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 6) -> list[float]:
    """The everyday loop; returns the losses."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr)


def losses_in(recording: Recording) -> list[float | None]:
    return recording.column("SELECT loss FROM steps ORDER BY step")


# The loss ------------------------------------------------------------------------------------------


def test_one_row_per_step_with_the_loss_the_loop_computed(record: Record) -> None:
    recording = record()
    model = Net()
    losses = train(model, torch.optim.Adam(model.parameters()), 20)
    assert recording.rows("SELECT step, local_step, optimizer, model, backwards, skipped FROM steps ORDER BY step") == [
        (step, step, 1, "Net", 1, 0) for step in range(20)
    ]
    assert losses_in(recording) == losses


def test_accumulated_losses_add_up(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = sgd(model)
    expected = []
    for _ in range(3):
        total = 0.0
        for _ in range(4):
            loss = loss_of(model) / 4
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(total)
    assert losses_in(recording) == pytest.approx(expected, rel=1e-15)
    assert recording.column("SELECT backwards FROM steps") == [4, 4, 4]


def scaled_training(model: nn.Module, steps: int, overflow_at: set[int]) -> list[float]:
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    for index in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        scaler.scale(loss).backward()
        if index in overflow_at:
            model.head.bias.grad.fill_(math.inf)
        scaler.step(optimizer)
        scaler.update()
        if index not in overflow_at:
            losses.append(loss.item())
    return losses


def test_the_loss_is_the_one_before_the_gradient_scaler(record: Record) -> None:
    recording = record()
    losses = scaled_training(Net(), 6, set())
    assert losses_in(recording) == losses


def test_steps_the_scaler_skipped_are_counted_at_the_next_one(record: Record) -> None:
    recording = record()
    losses = scaled_training(Net(), 8, {2, 5, 6})
    assert losses_in(recording) == losses
    assert recording.rows("SELECT skipped, backwards FROM steps ORDER BY step") == [
        (0, 1), (0, 1), (1, 2), (0, 1), (2, 3),
    ]  # fmt: skip


def test_several_scaled_losses_are_all_unscaled(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    expected = []
    for as_list in (False, True):
        optimizer.zero_grad()
        first, second = loss_of(model), loss_of(model)
        pair = scaler.scale([first, second]) if as_list else (scaler.scale(first), scaler.scale(second))
        for scaled in pair:
            scaled.backward()
        scaler.step(optimizer)
        scaler.update()
        expected.append(first.item() + second.item())
    assert losses_in(recording) == pytest.approx(expected, rel=1e-15)


def test_a_disabled_scaler_changes_nothing(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", enabled=False)
    expected = []
    for _ in range(3):
        loss = loss_of(model)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        expected.append(loss.item())
    assert losses_in(recording) == expected
    assert recording.column("SELECT skipped FROM steps") == [0, 0, 0]


def test_lbfgs_has_the_loss_its_step_returned(record: Record) -> None:
    recording = record()
    model = nn.Linear(5, 1)
    x, y = torch.randn(32, 5), torch.randn(32, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        return loss

    losses, counts = [], []
    for _ in range(3):
        before = calls
        losses.append(optimizer.step(closure).item())
        counts.append(calls - before)
    assert losses_in(recording) == losses
    assert recording.column("SELECT backwards FROM steps ORDER BY step") == counts
    assert max(counts) > 1


@pytest.mark.parametrize("by_name", [True, False])
def test_a_closure_given_to_any_optimizer_is_seen_and_its_gradients_are_sampled(record: Record, by_name: bool) -> None:
    recording = record(overhead=1.0)
    model = Net()
    optimizer = sgd(model)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(4):
        optimizer.step(closure=closure) if by_name else optimizer.step(closure)
    assert losses_in(recording) == losses
    assert recording.rows("SELECT count(*) FROM layers WHERE step = 0 AND kind = 'gradient' AND norm > 0") == [(4,)]


@pytest.mark.parametrize("by_name", [True, False])
def test_a_step_given_no_closure_explicitly_is_sampled_like_any_other(record: Record, by_name: bool) -> None:
    """As wrappers of optimizers do that pass their own argument on."""
    recording = record()
    model = Net()
    optimizer = sgd(model)
    loss_of(model).backward()
    optimizer.step(closure=None) if by_name else optimizer.step(None)
    assert recording.rows("SELECT count(*) FROM layers WHERE kind = 'gradient'") == [(4,)]


def test_losses_given_to_backward_together_add_up(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = sgd(model)
    first, second = loss_of(model), loss_of(model)
    torch.autograd.backward([first, second])
    optimizer.step()
    torch.autograd.backward(loss := loss_of(model))
    optimizer.step()
    torch.autograd.backward((single := loss_of(model),))
    optimizer.step()
    expected = [first.item() + second.item(), loss.item(), single.item()]
    assert losses_in(recording) == pytest.approx(expected, rel=1e-15)


def test_a_backward_without_a_loss_leaves_it_null(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = sgd(model)
    model(torch.randn(4, 5)).backward(torch.ones(4, 3))
    optimizer.step()
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    assert losses_in(recording) == [None, loss.item()]
    assert recording.column("SELECT backwards FROM steps") == [1, 1]


def test_gradients_set_by_hand_have_no_loss_and_do_not_repeat_an_older_one(record: Record) -> None:
    recording = record()
    train(Net(), sgd(Net()), 2)
    model = Net()
    optimizer = sgd(model)
    params = list(model.parameters())
    for _ in range(3):
        grads = torch.autograd.grad(loss_of(model), params)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.step()
    by_hand = recording.rows("SELECT loss, backwards, backward_ms FROM steps WHERE optimizer = 2")
    assert by_hand == [(None, 0, None)] * 3
    assert recording.rows("SELECT count(*) FROM steps WHERE optimizer = 1 AND loss IS NOT NULL") == [(2,)]


def test_per_sample_gradients_by_vmap_are_steps_without_a_loss(record: Record) -> None:
    recording = record(preset="deep", overhead=1.0)
    model = nn.Linear(5, 1)
    optimizer = sgd(model)
    params = {name: param.detach() for name, param in model.named_parameters()}

    def one_loss(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, params, (x,)).square().mean()

    for _ in range(3):
        grads = torch.func.vmap(torch.func.grad(one_loss), in_dims=(None, 0))(params, torch.randn(8, 5))
        for name, param in model.named_parameters():
            param.grad = grads[name].mean(0)
        optimizer.step()
    assert recording.rows("SELECT loss, backwards FROM steps") == [(None, 0)] * 3


def test_nan_and_infinite_losses_stay_what_they_are(record: Record) -> None:
    recording = record()
    model = nn.Linear(2, 1)
    optimizer = sgd(model, lr=0.0)
    for value in (1.0, math.nan, math.inf, -math.inf):
        (model(torch.ones(1, 2)).sum() * 0 + value).backward()
        optimizer.step()
    assert recording.rows("SELECT count(*), count(loss), count(*) FILTER (isnan(loss)) FROM steps") == [(4, 4, 1)]
    assert recording.column("SELECT loss FROM steps WHERE isinf(loss) ORDER BY loss") == [-math.inf, math.inf]


def test_losses_of_other_dtypes_are_numbers_too(record: Record) -> None:
    recording = record()
    expected = []
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        model = nn.Linear(5, 1, dtype=dtype)
        optimizer = sgd(model)
        loss = model(torch.randn(8, 5, dtype=dtype)).square().mean()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert losses_in(recording) == expected


# Optimizers ------------------------------------------------------------------------------------------


def test_two_optimizers_are_told_apart(record: Record) -> None:
    recording = record()
    maker, critic = nn.Sequential(nn.Linear(5, 5)), Net()
    make, judge = sgd(maker), torch.optim.Adam(critic.parameters())
    losses: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(4):
        for number, optimizer in ((1, judge), (2, make)):
            optimizer.zero_grad()
            loss = critic(maker(torch.randn(8, 5))).square().mean() * number
            loss.backward()
            optimizer.step()
            losses[number].append(loss.item())
    rows = recording.rows("SELECT step, optimizer, local_step, model, backwards FROM steps ORDER BY step")
    assert rows == [
        (2 * i + k, k + 1, i, "Net" if k == 0 else "Sequential", 1) for i in range(4) for k in (0, 1)
    ]  # fmt: skip
    for number, expected in losses.items():
        assert recording.column(f"SELECT loss FROM steps WHERE optimizer = {number} ORDER BY step") == expected


def test_optimizers_that_share_a_loss_each_have_it(record: Record) -> None:
    """After the first time: then it is not known yet that the second one belongs to the same backward."""
    recording = record()
    model = Net()
    first, second = sgd(model.body), sgd(model.head)
    losses = []
    for _ in range(4):
        loss = loss_of(model)
        loss.backward()
        first.step()
        second.step()
        losses.append(loss.item())
    assert recording.column("SELECT loss FROM steps WHERE optimizer = 1 ORDER BY step") == losses
    assert recording.column("SELECT loss FROM steps WHERE optimizer = 2 ORDER BY step") == [None, *losses[1:]]
    assert recording.column("SELECT DISTINCT backwards FROM steps WHERE optimizer = 2") == [0]


@pytest.mark.parametrize("order", ["together", "late"])
def test_losses_of_several_models_are_told_apart(record: Record, order: str) -> None:
    """Actor and critic: both losses go back, then both step. The critic has two heads with a loss each."""
    recording = record()
    actor, critic, twin = Net(), Net(), Net()
    act, judge = sgd(actor), torch.optim.Adam([*critic.parameters(), *twin.parameters()])
    expected: dict[int, list[float]] = {1: [], 2: []}
    for index in range(6):
        act.zero_grad()
        judge.zero_grad()
        losses = [loss_of(model) * scale for model, scale in ((actor, 1.0), (critic, 10.0), (twin, 100.0))]
        for loss in losses:
            loss.backward()
        expected[1].append(losses[0].item())
        expected[2].append(losses[1].item() + losses[2].item())
        if order == "together" or index % 2 == 0:
            act.step()
        judge.step()
    if order == "late":
        expected[1] = expected[1][::2]
    for number, column in expected.items():
        found = recording.column(f"SELECT loss FROM steps WHERE optimizer = {number} ORDER BY step")
        assert found[1:] == pytest.approx(column[1:], rel=1e-12)


def test_optimizers_that_share_accumulated_losses_each_have_their_sum(record: Record) -> None:
    recording = record()
    model = Net()
    first, second = sgd(model.body), sgd(model.head)
    sums = []
    for _ in range(4):
        first.zero_grad()
        second.zero_grad()
        losses = [loss_of(model) for _ in range(3)]
        for loss in losses:
            loss.backward()
        first.step()
        second.step()
        sums.append(sum(loss.item() for loss in losses))
    assert recording.column("SELECT loss FROM steps WHERE optimizer = 1 ORDER BY step") == pytest.approx(sums)
    assert recording.column("SELECT loss FROM steps WHERE optimizer = 2 ORDER BY step")[1:] == pytest.approx(sums[1:])


def test_accumulation_beside_another_model_still_adds_up(record: Record) -> None:
    """As a GAN does: two losses of the judge, then one of the maker that goes through both models."""
    recording = record()
    maker, critic = nn.Linear(5, 5), Net()
    make, judge = sgd(maker), sgd(critic)
    expected: list[float] = []
    for _ in range(4):
        judge.zero_grad()
        real, fake = loss_of(critic), critic(maker(torch.randn(8, 5)).detach()).square().mean()
        real.backward()
        fake.backward()
        judge.step()
        make.zero_grad()
        fooled = critic(maker(torch.randn(8, 5))).square().mean()
        fooled.backward()
        make.step()
        expected += [real.item() + fake.item(), fooled.item()]
    assert losses_in(recording) == pytest.approx(expected)


class Outer(torch.optim.Optimizer):
    """Steps another optimizer inside its own step, as Lookahead and ZeRO do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups[0]["params"], {"lr": 0.7})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.inner.step(closure)


def test_nested_optimizers_give_one_row_of_the_outer_one(record: Record) -> None:
    recording = record()
    model = Net()
    losses = train(model, Outer(Outer(sgd(model))), 5)
    assert losses_in(recording) == losses
    assert recording.rows("SELECT DISTINCT optimizer, lr FROM steps") == [(1, 0.7)]


class Careful(torch.optim.SGD):
    """Overrides `step` and calls the one it inherits: torch runs the hooks of both."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        return super().step(closure)


def test_a_step_that_calls_the_inherited_one_gives_one_row(record: Record) -> None:
    recording = record()
    model = Net()
    sgd(Net())  # SGD's own step is hooked, too
    losses = train(model, Careful(model.parameters(), lr=0.1), 5)
    assert losses_in(recording) == losses


class Plain(torch.optim.Optimizer):
    """A user's own optimizer, without a learning rate."""

    def __init__(self, params: object) -> None:
        super().__init__(params, {"size": 0.1})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                param.sub_(param.grad, alpha=group["size"])


def test_a_custom_optimizer_without_learning_rate_has_rows_without_one(record: Record) -> None:
    recording = record()
    model = Net()
    losses = train(model, Plain(model.parameters()), 15)
    assert losses_in(recording) == losses
    assert recording.column("SELECT DISTINCT lr FROM steps") == [None]


def test_the_learning_rate_follows_the_scheduler(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = sgd(model, lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    rates = []
    for _ in range(4):
        loss_of(model).backward()
        optimizer.step()
        rates.append(scheduler.get_last_lr()[0])
        scheduler.step()
    assert recording.column("SELECT lr FROM steps ORDER BY step") == rates


def test_the_learning_rate_is_the_first_groups_and_may_be_a_tensor_or_an_integer(record: Record) -> None:
    recording = record()
    model = Net()
    groups = [{"params": model.body.parameters(), "lr": 0.25}, {"params": model.head.parameters()}]
    train(model, torch.optim.SGD(groups, lr=0.125), 1)
    train(model, torch.optim.Adam(model.parameters(), lr=torch.tensor(0.5)), 1)
    train(model, torch.optim.SGD(model.parameters(), lr=1), 1)
    assert recording.column("SELECT lr FROM steps ORDER BY step") == [0.25, 0.5, 1.0]


def test_optimizers_that_step_inside_backward_have_a_row_for_each_step(record: Record) -> None:
    recording = record(overhead=1.0)
    model = Net()
    optimizers = {param: torch.optim.SGD([param], lr=0.1) for param in model.parameters()}
    for param in optimizers:
        param.register_post_accumulate_grad_hook(lambda param: optimizers[param].step())
    losses = []
    for _ in range(5):
        loss = loss_of(model)
        loss.backward()
        losses.append(loss.item())
        model.zero_grad()
    assert recording.rows("SELECT count(*), count(DISTINCT optimizer) FROM steps") == [(20, 4)]
    for number in (1, 2, 3, 4):
        seen = recording.column(f"SELECT loss FROM steps WHERE optimizer = {number} ORDER BY step")
        assert seen == losses
    assert recording.rows("SELECT count(*) FROM steps WHERE backward_ms IS NOT NULL") == [(0,)]
    assert recording.rows("SELECT count(*) FROM steps WHERE forward_ms + optimizer_ms > step_ms * 1.05") == [(0,)]
    assert set(recording.column("SELECT DISTINCT layer FROM layers")) == set(LAYERS)


def test_an_optimizer_may_step_before_any_backward(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    assert recording.rows("SELECT loss, backwards, step_ms, forward_ms, backward_ms, grad_norm FROM steps") == [
        (None, 0, None, None, None, None)
    ]


# Data and times ------------------------------------------------------------------------------------------


def test_samples_and_waiting_come_from_the_data_loader(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = sgd(model)
    for x, y in DataLoader(samples(28), batch_size=8):
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert recording.column("SELECT samples FROM steps ORDER BY step") == [8, 8, 8, 4]
    assert recording.rows("SELECT count(*) FROM steps WHERE data_ms > 0 AND forward_ms > 0") == [(4,)]


def test_samples_of_accumulated_batches_add_up(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = sgd(model)
    for index, (x, y) in enumerate(DataLoader(samples(32), batch_size=8)):
        cross_entropy(model(x), y).backward()
        if index % 2:
            optimizer.step()
    assert recording.column("SELECT samples FROM steps") == [16, 16]


@pytest.mark.parametrize(
    "collate",
    [
        lambda rows: torch.stack([x for x, _ in rows]),
        lambda rows: (torch.stack([x for x, _ in rows]), None),
        lambda rows: {"x": torch.stack([x for x, _ in rows]), "y": 1},
        lambda rows: [{"x": torch.stack([x for x, _ in rows])}],
    ],
    ids=["tensor", "tuple", "dict", "list of dicts"],
)
def test_samples_are_counted_in_batches_of_any_shape(record: Record, collate: Callable[..., object]) -> None:
    recording = record()
    model = Net()
    optimizer = sgd(model)
    for _ in DataLoader(samples(12), batch_size=4, collate_fn=collate):
        loss_of(model).backward()
        optimizer.step()
    assert recording.column("SELECT samples FROM steps") == [4, 4, 4]


def test_without_a_data_loader_its_columns_are_null(record: Record) -> None:
    recording = record()
    model = Net()
    train(model, sgd(model), 3)
    assert recording.rows("SELECT DISTINCT samples, data_ms FROM steps") == [(None, None)]


def test_evaluation_batches_do_not_count(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = sgd(model)
    for _ in range(2):
        for x, y in DataLoader(samples(8), batch_size=4):
            cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, _ in DataLoader(samples(60), batch_size=20):
                model(x)
        with torch.inference_mode():
            for x, _ in DataLoader(samples(60), batch_size=20):
                model(x)
    assert recording.column("SELECT samples FROM steps ORDER BY step") == [4, 4, 4, 4]


def test_an_evaluation_that_only_calls_the_model_without_gradients_does_not_count_either(record: Record) -> None:
    """Its batches come while gradients are enabled, but no backward follows them."""
    recording = record()
    model = Net()
    optimizer = sgd(model)
    for _ in range(2):
        for x, _ in DataLoader(samples(60), batch_size=20):
            with torch.no_grad():
                model(x)
        for x, y in DataLoader(samples(8), batch_size=4):
            cross_entropy(model(x), y).backward()
            optimizer.step()
    assert recording.column("SELECT samples FROM steps ORDER BY step") == [4, 4, 4, 4]


def test_a_batch_that_comes_ahead_of_its_use_is_counted_where_it_is_used(record: Record) -> None:
    """As Accelerate does: it asks for one more batch before it hands the last one out."""
    recording = record()
    model = Net()
    optimizer = sgd(model)
    for _ in range(2):
        batches = iter(DataLoader(samples(28), batch_size=8))
        following = next(batches, None)
        while following is not None:
            (x, y), following = following, next(batches, None)
            cross_entropy(model(x), y).backward()
            optimizer.step()
    assert recording.column("SELECT samples FROM steps ORDER BY step") == [8, 8, 8, 4] * 2


def test_batches_that_come_together_before_a_step_all_count(record: Record) -> None:
    """As Transformers does: all batches that a step accumulates are asked for before the first is used."""
    recording = record()
    model = Net()
    optimizer = sgd(model)
    batches = iter(DataLoader(samples(28), batch_size=4))
    while together := list(itertools.islice(batches, 3)):
        for x, y in together:
            cross_entropy(model(x), y).backward()
        optimizer.step()
    assert recording.column("SELECT samples FROM steps ORDER BY step") == [12, 12, 4]


def test_a_closure_that_is_called_often_counts_one_batch(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    batches = iter(DataLoader(samples(24), batch_size=8))
    together = list(batches)
    for x, y in together:

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert recording.column("SELECT samples FROM steps ORDER BY step") == [8, 8, 8]
    assert recording.rows("SELECT min(backwards) > 1 FROM steps") == [(True,)]


def test_two_loaders_side_by_side_count_the_one_asked_last(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = sgd(model)
    for (x, y), (more, _) in zip(
        DataLoader(samples(12), batch_size=4), DataLoader(samples(30), batch_size=10), strict=True
    ):
        (cross_entropy(model(x), y) + model(more).square().mean()).backward()
        optimizer.step()
    assert recording.column("SELECT samples FROM steps ORDER BY step") == [10, 10, 10]


def test_a_batch_that_is_looked_at_before_the_training_does_not_count(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = sgd(model)
    next(iter(DataLoader(samples(20), batch_size=20)))
    for x, y in DataLoader(samples(8), batch_size=4):
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert recording.column("SELECT samples FROM steps ORDER BY step") == [4, 4]


@pytest.mark.parametrize("evaluations", [1, 3])
@pytest.mark.usefixtures("every_step")
def test_what_a_closure_does_is_not_the_optimizers_time(record: Record, evaluations: int) -> None:
    """Lightning gives every optimizer a closure that computes the loss and its gradients."""
    recording = record(preset="light", overhead=0.0)
    model = Net()

    class Often(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for _ in range(evaluations - 1):
                closure()
            return super().step(closure)

    optimizer = Often(model.parameters(), lr=0.1)
    clock = recording.steps.session.now_ns

    def spend(ticks: int) -> None:
        for _ in range(ticks):
            clock()

    for x, y in DataLoader(samples(40), batch_size=8):

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            spend(100)
            loss.backward()
            return loss

        optimizer.step(closure)
    times = ("data_ms", "forward_ms", "backward_ms", "optimizer_ms", "step_ms")
    rows = np.array(recording.rows(f"SELECT {', '.join(times)} FROM steps WHERE step > 0"))
    assert (rows[:, :4].sum(axis=1) <= rows[:, 4]).all()
    assert (rows[:, 1] > 0.8 * rows[:, 4]).all() and (rows[:, 3] < 0.1 * rows[:, 4]).all()


@pytest.mark.usefixtures("every_step")
def test_the_parts_of_a_step_add_up_to_no_more_than_the_whole(record: Record) -> None:
    recording = record(preset="deep", overhead=1.0)
    model = nn.Sequential(nn.Linear(5, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 3))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        for index, (x, y) in enumerate(DataLoader(samples(512), batch_size=64)):
            (cross_entropy(model(x), y) / 2).backward()
            if index % 2:
                optimizer.step()
                optimizer.zero_grad()
    times = ("data_ms", "forward_ms", "backward_ms", "optimizer_ms", "step_ms")
    rows = np.array(recording.rows(f"SELECT {', '.join(times)} FROM steps WHERE step > 0"))
    assert rows.shape == (11, 5)
    assert (rows > 0).all()
    assert (rows[:, :4].sum(axis=1) <= rows[:, 4] * 1.05).all()


def test_the_first_step_has_no_duration(record: Record) -> None:
    recording = record()
    model = Net()
    train(model, sgd(model), 2)
    assert recording.column("SELECT step_ms IS NULL FROM steps ORDER BY step") == [True, False]


def test_a_thread_new_to_an_old_optimizer_has_no_duration_for_its_first_step(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = sgd(model)
    for _ in range(3):
        thread = threading.Thread(target=train, args=(model, optimizer, 2))
        thread.start()
        thread.join()
    assert recording.column("SELECT step_ms IS NULL FROM steps ORDER BY step") == [True, False] * 3


def test_memory_is_that_of_parameters_gradients_and_state(record: Record) -> None:
    recording = record()
    model = nn.Linear(100, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        model(torch.randn(4, 100)).sum().backward()
        optimizer.step()
    # At the first step there is no momentum yet.
    assert recording.column("SELECT allocated_bytes FROM steps WHERE step = 0") == [1010 * 4 * 2]


# Threads -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("every_step")
def test_threads_keep_their_own_losses_and_step_numbers_are_unique(record: Record) -> None:
    recording = record(preset="deep", overhead=1.0)
    losses: dict[int, list[float]] = {}
    ready = threading.Barrier(2)

    def work(number: int) -> None:
        model = nn.Linear(5, number + 1)
        optimizer = sgd(model)
        x = torch.arange(40.0).reshape(8, 5)
        ready.wait()
        seen = []
        for _ in range(60):
            optimizer.zero_grad()
            loss = model(x).square().mean() * 1e-4
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        losses[number] = seen

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recording.column("SELECT step FROM steps ORDER BY step") == list(range(120))
    by_optimizer = [
        recording.column(f"SELECT loss FROM steps WHERE optimizer = {number} ORDER BY local_step") for number in (1, 2)
    ]
    assert sorted(by_optimizer) == sorted(losses.values())
    unmatched = recording.rows(
        "SELECT count(*) FROM layers WHERE kind <> 'activation' "
        "AND (optimizer, step) NOT IN (SELECT (optimizer, step) FROM steps)"
    )
    assert unmatched == [(0,)]
    assert recording.rows("SELECT count(*) > 0 FROM layers") == [(True,)]


@pytest.mark.usefixtures("every_step")
def test_a_module_trace_survives_the_death_of_its_thread(record: Record) -> None:
    """A thread that ends in the middle of a trace does not keep others from being traced."""
    recording = record(overhead=1.0)

    def work() -> None:
        model = Net()
        train(model, sgd(model), 6)

    for _ in range(10):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(recording.column("SELECT DISTINCT optimizer FROM modules")) >= 3


# Trouble in the training --------------------------------------------------------------------------------------


class Fragile(torch.optim.SGD):
    """Raises at every third step."""

    calls = 0

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        self.calls += 1
        if self.calls % 3 == 0:
            raise RuntimeError("out of luck")
        return super().step(closure)


def test_a_training_that_survives_its_optimizers_failure_is_still_observed(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = Fragile(model.parameters(), lr=0.1)
    losses = []
    for _ in range(9):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        try:
            optimizer.step()
        except RuntimeError:
            continue
        losses.append(loss.item())
    assert losses_in(recording) == losses
    assert recording.column("SELECT step FROM steps ORDER BY step") == list(range(6))


def test_another_optimizer_is_not_taken_for_a_part_of_one_that_failed(record: Record) -> None:
    recording = record()
    model, other = Net(), Net()
    broken = Fragile(model.parameters(), lr=0.1)
    broken.calls = 2
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match="out of luck"):
        broken.step()
    optimizer = sgd(other)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        parts = [loss_of(other) / 2, loss_of(other) / 2]
        for part in parts:
            part.backward()
        optimizer.step()
        losses.append(parts[0].item() + parts[1].item())
    assert losses_in(recording) == pytest.approx(losses, rel=1e-15)


def test_a_backward_that_raises_does_not_blind_us(record: Record) -> None:
    recording = record()
    model = Net()
    optimizer = sgd(model)
    loss = loss_of(model)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    optimizer.step()
    losses = train(model, optimizer, 3)
    assert losses_in(recording)[1:] == losses


@pytest.mark.usefixtures("forgiving")
def test_backward_of_something_that_is_no_loss_raises_what_torch_raises(record: Record) -> None:
    recording = record()
    model = Net()
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        model(torch.randn(4, 5)).backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).sum().backward()
    losses = train(model, sgd(model), 3)
    assert losses_in(recording) == losses


@pytest.mark.parametrize("place", ["odd_loss", "sample", "reopen"])
def test_ctrl_c_inside_a_callback_comes_out_and_the_training_may_go_on(
    record: Record, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    recording = record()
    model = Net()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StepRecorder, place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            scaler.scale(loss_of(model)).backward()
            optimizer.step()
    losses = train(model, optimizer, 4)
    assert losses_in(recording)[-4:] == losses
    assert recording.column("SELECT DISTINCT backwards FROM steps WHERE local_step > 1") == [1]


# Beginning and ending ----------------------------------------------------------------------------------------------


def test_closing_undoes_everything(record: Record) -> None:
    before = touched()
    recording = record(preset="deep", overhead=1.0)
    during = touched()
    model = Net()
    optimizer = sgd(model)
    train(model, optimizer, 5)
    recording.watch.close()
    assert touched() == before
    patched = {
        "torch.autograd.backward", "_BaseDataLoaderIter.__next__", "GradScaler.scale", "GradScaler.step",
        "torch.compile", "Logger.callHandlers", "sys.excepthook", "sys.meta_path", "step pre hooks", "step post hooks",
    }  # fmt: skip
    distributed = {"Work", "ProcessGroup"}  # where something else has imported torch.distributed
    assert {name for name in before if before[name] != during[name]} - distributed == patched
    train(model, optimizer, 5)
    assert recording.rows("SELECT count(*) FROM steps") == [(5,)]


def test_somebody_elses_wrapper_around_ours_stays(record: Record) -> None:
    recording = record()
    ours = torch.autograd.backward
    calls = 0

    def theirs(*args: object, **kwargs: object) -> None:
        nonlocal calls
        calls += 1
        ours(*args, **kwargs)

    try:
        torch.autograd.backward = theirs
        recording.watch.close()
        assert torch.autograd.backward is theirs
        model = Net()
        train(model, sgd(model), 3)
        assert calls == 3
        assert recording.rows("SELECT count(*) FROM steps") == [(0,)]
    finally:
        torch.autograd.backward = inspect.unwrap(ours)


def test_watching_twice_is_watching_once(record: Record) -> None:
    recording = record()
    model = Net()
    second = stethos.watch(model, name="ignored")
    assert second.path == recording.path
    losses = train(model, sgd(model), 4)
    second.close()
    losses += train(model, sgd(model), 2)
    assert losses_in(recording) == losses


def test_after_closing_one_may_watch_again(record: Record) -> None:
    model = Net()
    optimizer = sgd(model)
    first = record()
    one = train(model, optimizer, 3)
    first.close()
    train(model, optimizer, 2)
    second = record()
    two = train(model, optimizer, 4)
    assert losses_in(first) == one
    assert losses_in(second) == two
    assert second.column("SELECT step FROM steps ORDER BY step") == [0, 1, 2, 3]


def test_the_handle_is_a_context_manager(record: Record) -> None:
    recording = record()
    model = Net()
    with recording.watch:
        train(model, sgd(model), 2)
    train(model, sgd(model), 2)
    assert recording.rows("SELECT count(*) FROM steps") == [(2,)]


def test_an_error_in_the_with_block_comes_out(record: Record) -> None:
    recording = record()
    with pytest.raises(ZeroDivisionError), recording.watch:
        raise ZeroDivisionError


def test_an_uncaught_exception_is_noted_and_shown_as_ever(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    recording = record()
    for error in (ValueError("bad password=hunter2"), Unspeakable()):
        try:
            raise error
        except Exception:
            sys.excepthook(*sys.exc_info())
    assert capsys.readouterr().err.count("Traceback (most recent call last)") == 2
    (traceback,) = recording.column("SELECT traceback FROM processes")
    assert "Unspeakable" in traceback
    assert "hunter2" not in traceback


def test_a_model_can_be_garbage_collected_while_it_is_watched(record: Record) -> None:
    record(preset="deep", overhead=1.0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 5)
    weights = weakref.ref(model.head.weight)
    del model, optimizer
    gc.collect()
    assert weights() is None


def test_thousands_of_optimizers_do_not_pile_up(record: Record) -> None:
    recording = record(overhead=0.01)
    for _ in range(300):
        model = nn.Linear(2, 1)
        optimizer = sgd(model)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    gc.collect()
    assert len(recording.steps.optimizers) <= 1
    assert recording.rows("SELECT count(DISTINCT optimizer), count(DISTINCT step) FROM steps") == [(300, 300)]


def test_a_run_is_complete_as_soon_as_its_watch_is_closed(tmp_path: Path) -> None:
    """With a real drainer, which reading waits for."""
    model = Net()
    with stethos.watch(dir=tmp_path) as watch:
        losses = train(model, sgd(model), 20)
        assert watch.path is not None
        place = RunPlace(watch.path)
        wait_until(lambda: place.processes()[0].manifest(), "the drainer at work")
    with watch.run() as run:
        assert [loss for (loss,) in run.rows("SELECT loss FROM steps ORDER BY step").values] == losses
    wait_until(lambda: not drainers_of(tmp_path), "the end of the drainer")


@pytest.mark.parametrize("path", [hotpath.__file__, step_module.__file__], ids=["hot path", "step watch"])
def test_dynamo_is_told_to_leave_our_code_alone_once_it_is_used(record: Record, path: str) -> None:
    before = list(trace_rules.SKIP_DIRS)
    try:
        record()
        torch.compile(Net(), backend="eager")
        assert trace_rules.check_file(path).skipped
        assert not trace_rules.check_file(__file__).skipped
    finally:
        trace_rules.SKIP_DIRS[:] = before
        trace_rules._recompile_re()


# Names ---------------------------------------------------------------------------------------------------------


def layer_names(recording: Recording, optimizer: int = 1) -> list[str]:
    query = f"""SELECT layer FROM layers WHERE kind = 'weight' AND optimizer = {optimizer}
        AND step = (SELECT min(step) FROM layers WHERE optimizer = {optimizer})"""
    return recording.column(query)


def kinds_of_model() -> Iterator[tuple[str, Callable[[], tuple[nn.Module, object]], list[str]]]:
    def plain() -> tuple[nn.Module, object]:
        model = Net()
        return model, model.parameters()

    def in_a_list() -> tuple[nn.Module, object]:
        model = Net()
        return model, list(model.parameters())

    def in_groups() -> tuple[nn.Module, object]:
        model = Net()
        return model, [{"params": model.head.parameters()}, {"params": list(model.body.parameters()), "lr": 0.2}]

    def wrapped() -> tuple[nn.Module, object]:
        model = nn.DataParallel(Net())
        return model, model.parameters()

    def copied() -> tuple[nn.Module, object]:
        model = copy.deepcopy(Net())
        return model, model.parameters()

    def in_a_bigger_one() -> tuple[nn.Module, object]:
        model = nn.ModuleDict({"teacher": nn.Linear(1, 1), "student": Net()})
        return model, model["student"].parameters()

    def named() -> tuple[nn.Module, object]:
        model = Net()
        return model, model.named_parameters()

    yield "parameters()", plain, LAYERS
    yield "a list", in_a_list, LAYERS
    yield "groups", in_groups, [*LAYERS[2:], *LAYERS[:2]]
    yield "a wrapper", wrapped, LAYERS
    yield "a copy", copied, LAYERS
    yield "a part of a bigger model", in_a_bigger_one, [f"student.{name}" for name in LAYERS]
    yield "named_parameters()", named, LAYERS


@pytest.mark.parametrize(
    ("make", "names"), [kind[1:] for kind in kinds_of_model()], ids=[k[0] for k in kinds_of_model()]
)
@pytest.mark.parametrize("is_given", [True, False], ids=["given to watch", "not given"])
def test_layers_have_the_names_of_the_model(
    record: Record, make: Callable[[], tuple[nn.Module, object]], names: list[str], is_given: bool
) -> None:
    model, params = make()
    recording = record(model) if is_given else record()
    optimizer = torch.optim.SGD(params, lr=0.1)
    called = model["student"] if isinstance(model, nn.ModuleDict) else model
    train(called, optimizer, 1)
    assert layer_names(recording) == names


def test_tensors_without_a_module_are_numbered(record: Record) -> None:
    recording = record()
    weights = [torch.randn(3, requires_grad=True), torch.randn(4, requires_grad=True)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    (weights[0].sum() + weights[1].sum()).backward()
    optimizer.step()
    assert layer_names(recording) == ["param_0", "param_1"]
    assert recording.column("SELECT model FROM steps") == [None]


def test_copies_of_a_model_share_its_names(record: Record) -> None:
    """As the clients of a federation do."""
    recording = record(overhead=1.0)
    model = Net()
    for _ in range(5):
        client = copy.deepcopy(model)
        train(client, sgd(client), 2)
    assert set(recording.column("SELECT DISTINCT layer FROM layers")) == set(LAYERS)
    assert recording.rows("SELECT optimizer, model, max(local_step) FROM steps GROUP BY ALL ORDER BY 1") == [
        (number, "Net", 1) for number in range(1, 6)
    ]


def test_layers_of_equal_shape_are_told_apart_when_each_has_an_optimizer(record: Record) -> None:
    recording = record(overhead=1.0)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])
    optimizers = [torch.optim.SGD([param], lr=0.1) for param in model.parameters()]
    for _ in range(3):
        model(torch.randn(8, 4)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    names = [name for name, _ in model.named_parameters()]
    first = recording.rows("SELECT DISTINCT optimizer, layer FROM layers ORDER BY optimizer")
    assert [names[number - 1] for number, _ in first] == [name for _, name in first]
    assert len(first) >= 2


@pytest.mark.usefixtures("every_step")
def test_a_group_added_later_is_recorded_from_then_on(record: Record) -> None:
    recording = record(overhead=1.0)
    model = Net()
    optimizer = sgd(model.head)
    train(model, optimizer, 3)
    optimizer.add_param_group({"params": list(model.body.parameters())})
    train(model, optimizer, 12)
    assert set(layer_names(recording)) == {"head.weight", "head.bias"}
    last = recording.rows(
        "SELECT layer, drift FROM layers WHERE kind = 'weight' "
        "AND step = (SELECT max(step) FROM layers WHERE kind = 'weight')"
    )
    assert len(last) == 4
    assert all(drift > 0 for _, drift in last)


def test_logging_is_untouched_by_the_fixture_of_these_tests(record: Record) -> None:
    """A guard for the tests themselves: nothing of pytest's stands in our way."""
    recording = record()
    logging.getLogger("a").warning("seen")
    assert recording.column("SELECT message FROM logs") == ["seen"]
