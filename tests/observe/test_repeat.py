"""`sdc`: steps are repeated and compared to the last bit; wrong numbers are found, and the training is what it was."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recording import Recording
from torch import nn
from torch.nn.functional import cross_entropy

STEPS = 6


def flipped(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor with one bit of its fifth element changed."""
    other = tensor.detach().clone()
    other.view(-1).view(torch.int32)[4] ^= 1 << 12
    return tensor + (other - tensor).detach() if tensor.requires_grad else other


class Calls:
    """Counts calls from outside of any module, so that a repetition does not take it back."""

    def __init__(self) -> None:
        self.count = 0

    def is_at(self, *counts: int) -> bool:
        self.count += 1
        return self.count in counts


class Faulty(nn.Module):
    """Flips a bit of what goes through it at some of its calls."""

    def __init__(self, *counts: int) -> None:
        super().__init__()
        self.calls, self.counts = Calls(), counts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return flipped(x) if self.calls.is_at(*self.counts) else x * 1


class _FlipsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, is_now: Callable[[], bool]) -> torch.Tensor:
        ctx.is_now = is_now
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return (flipped(gradient) if ctx.is_now() else gradient), None


class FaultyBackward(nn.Module):
    """Flips a bit of the gradient that goes through it at some of its calls."""

    def __init__(self, *counts: int) -> None:
        super().__init__()
        self.calls, self.counts = Calls(), counts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _FlipsGradient.apply(x, lambda: self.calls.is_at(*self.counts))
        return found


def net(middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), middle, nn.Linear(8, 3))


def train(model: nn.Module, steps: int = STEPS, forward: Callable[..., torch.Tensor] | None = None) -> None:
    optimizer = torch.optim.SGD((one for one in model.parameters() if one.requires_grad), lr=0.1, momentum=0.9)
    for _ in range(steps):
        x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
        optimizer.zero_grad()
        (forward(model, x, y) if forward is not None else cross_entropy(model(x), y)).backward()
        optimizer.step()


def checked(path: Path, make: Callable[[], nn.Module], **options: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows about repeated steps, and what was said to be left out."""
    torch.manual_seed(0)
    model = make()
    recording = Recording(path, sdc=1.0)
    train(model, **options)
    recording.close()
    rows = recording.rows("SELECT step, detail FROM inspections WHERE phase = 'repeated' ORDER BY step")
    gaps = [reason for (reason,) in recording.rows("SELECT reason FROM gaps WHERE what = 'sdc'")]
    return [{"step": step, **json.loads(detail)} for step, detail in rows], gaps


def test_a_healthy_training_is_equal_whenever_it_is_repeated(tmp_path: Path) -> None:
    rows, gaps = checked(tmp_path, lambda: net(nn.Dropout(0.5)))
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert {(row["outcome"], row["executions"], row["module"]) for row in rows} == {("equal", 2, "Sequential")}
    assert {row["compared"] for row in rows} == {5 + 4} and gaps == []  # outputs of modules and gradients


def test_a_share_of_the_steps_is_repeated(tmp_path: Path) -> None:
    recording = Recording(tmp_path, sdc=0.25)
    train(net(nn.Identity()), 14)
    recording.close()
    assert recording.column("SELECT step FROM inspections WHERE phase = 'repeated' ORDER BY step") == [4, 8, 12]


# Calls of the layer: step 0 is not repeated, then two a step, and five where the first two differ.
@pytest.mark.parametrize(
    ("middle", "kind", "layer", "where"),
    [
        (lambda: Faulty(6), "activation", "2", "training"),
        (lambda: Faulty(7), "activation", "2", "repetition"),
        (lambda: FaultyBackward(6), "gradient", "0.weight", "training"),
        (lambda: FaultyBackward(7), "gradient", "0.weight", "repetition"),
    ],
)
def test_a_flipped_bit_is_found_with_its_layer_and_step(
    middle: Callable[[], nn.Module], kind: str, layer: str, where: str, tmp_path: Path
) -> None:
    rows, gaps = checked(tmp_path, lambda: net(middle()))
    assert [row["outcome"] for row in rows] == ["equal", "equal", "corrupt", "equal", "equal"] and gaps == []
    found = rows[2]
    assert (found["step"], found["kind"], found["executions"], found["where"]) == (3, kind, 5, where)
    assert found["layer"].split(".")[0] == layer.split(".")[0]


def test_a_weight_whose_memory_changes_in_the_step_is_found(tmp_path: Path) -> None:
    calls = Calls()

    def forward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(model(x), y)
        if calls.is_at(4):
            model[3].weight.detach().numpy().view(np.int32)[1, 1] ^= 1 << 9  # type: ignore[index, union-attr]
        return loss

    rows, _ = checked(tmp_path, lambda: net(nn.Identity()), forward=forward)
    assert [row["outcome"] for row in rows] == ["equal", "equal", "corrupt", "equal", "equal"]
    assert (rows[2]["kind"], rows[2]["layer"], rows[2]["step"]) == ("weight", "3.weight", 3)


class Noisy(nn.Module):
    """As an operation that is not deterministic."""

    source = random.Random(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.source.random() * 1e-3


def test_a_model_that_is_not_deterministic_is_not_accused(tmp_path: Path) -> None:
    rows, gaps = checked(tmp_path, lambda: net(Noisy()))
    assert [row["outcome"] for row in rows] == ["differs"] * 3  # then it is left alone
    assert {row["layer"] for row in rows} == {"2"} and len(gaps) == 1 and "in a row" in gaps[0]


# Programs whose forward pass changes or draws something ------------------------------------------------------------


class Stateful(nn.Module):
    """Counts, keeps a list, a running mean as a plain tensor and a hidden state, and draws from five generators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.history: list[float] = []
        self.cache: dict[str, Any] = {"mean": torch.zeros(6), "seen": set()}
        self.hidden = (torch.zeros(1, 5, 8), torch.zeros(1, 5, 8))
        self.generator = torch.Generator().manual_seed(3)
        self.own = random.Random(4)
        self.numbers = np.random.default_rng(5)
        self.norm = nn.BatchNorm1d(6)
        self.lstm = nn.LSTM(6, 8)
        self.head = nn.Linear(8, 3)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, Any]:
        self.calls += 1
        self.cache["mean"].mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.cache["seen"].add(self.calls)
        noise = torch.randn(x.shape, generator=self.generator) + self.own.random() + float(self.numbers.normal())
        noise = noise + torch.rand(1) + random.random() + float(np.random.rand())
        x = self.norm(self.frozen(x) + noise * 0.01 + self.cache["mean"]) * scale / (1 + self.calls)
        out, (h, c) = self.lstm(x[None], self.hidden)
        self.hidden = (h.detach(), c.detach())
        self.history.append(float(out.detach().sum()))
        self.last = out.detach()
        return {"logits": self.head(out[0]), "extra": [out, None]}


def forward_of_stateful(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = cross_entropy(model(x, scale=torch.tensor(2.0))["logits"], y)
    return loss + 1e-3 * sum(one.pow(2).sum() for one in model.parameters())


def remains_of(path: Path, sdc: float) -> tuple[Any, ...]:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    model = Stateful()
    recording = Recording(path / str(sdc), sdc=sdc)
    train(model, forward=forward_of_stateful)
    rows = recording.close() and recording.rows("SELECT detail FROM inspections WHERE phase = 'repeated'")
    outcomes = [json.loads(detail)["outcome"] for (detail,) in rows]
    state = [one.tolist() for one in model.state_dict().values()]
    own = (
        model.calls,
        model.history,
        model.cache,
        model.hidden,
        model.own.getstate(),
        model.numbers.random(),
        model.last,
    )
    flat = repr((state, own, model.generator.get_state().sum(), torch.rand(3), np.random.rand(), random.random()))
    return flat, outcomes, vars(model).keys(), model.lstm._flat_weights[0] is model.lstm.weight_ih_l0


def test_nothing_that_a_forward_pass_changes_is_changed_twice(tmp_path: Path) -> None:
    bare, repeated = remains_of(tmp_path, 0.0), remains_of(tmp_path, 1.0)
    assert (bare[0], bare[2], bare[3]) == (repeated[0], repeated[2], True)
    assert (bare[1], repeated[1]) == ([], ["equal"] * 5)


# What is not compared, and what is left out ------------------------------------------------------------------------


def test_gradients_that_come_from_elsewhere_too_are_not_compared(tmp_path: Path) -> None:
    def forward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weight = model[0].weight  # type: ignore[index]
        return cross_entropy(model(x), y) + weight.abs().sum()

    rows, gaps = checked(tmp_path, lambda: net(nn.Identity()), forward=forward)
    assert {(row["outcome"], row["compared"]) for row in rows} == {("equal", 5 + 3)} and gaps == []


def test_a_module_that_is_called_twice_is_compared_by_its_outputs(tmp_path: Path) -> None:
    def forward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(x), y) + model(x + 1).pow(2).mean()

    rows, _ = checked(tmp_path, lambda: net(nn.Identity()), forward=forward)
    assert {(row["outcome"], row["compared"]) for row in rows} == {("equal", 5)}


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.body(x)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def test_a_model_that_computes_its_own_loss_is_repeated_whole(tmp_path: Path) -> None:
    def forward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(x, labels=y)["loss"]
        return found

    rows, gaps = checked(tmp_path, WithLoss, forward=forward)
    assert [row["outcome"] for row in rows] == ["equal"] * 5 and gaps == []


class ChangesInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)


class ChangesWeight(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.mul_(0.99)
        return super().forward(x)


def with_hook() -> nn.Module:
    model = net(nn.Identity())
    model[0].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(ChangesInput(), nn.Linear(6, 3)), "arguments are changed in place"),
        (lambda: nn.Sequential(ChangesWeight(6, 3)), "weights change"),
        (with_hook, "hooks on a Linear"),
    ],
)
def test_what_cannot_be_repeated_is_left_out_and_said(
    make: Callable[[], nn.Module], words: str, tmp_path: Path
) -> None:
    rows, gaps = checked(tmp_path, make)
    assert rows == [] and len(gaps) == 1 and words in gaps[0]


class Greedy(nn.Module):
    """Finds no memory when it is asked again."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Calls()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.calls.is_at(3):
            torch.empty(1 << 50)
        return x * 1


def test_without_memory_for_a_repetition_no_more_are_tried(tmp_path: Path) -> None:
    rows, gaps = checked(tmp_path, lambda: net(Greedy()))
    assert rows == [] and len(gaps) == 1 and "not repeated" in gaps[0] and "memory" in gaps[0]


class Interrupted(nn.BatchNorm1d):
    calls = Calls()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = super().forward(x)
        if self.calls.is_at(3):
            raise KeyboardInterrupt
        return found


def test_ctrl_c_in_a_repetition_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = net(Interrupted(8))
    parameters = list(model.parameters())
    with Recording(tmp_path, sdc=1.0).watch, pytest.raises(KeyboardInterrupt):
        train(model)
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    assert int(model[2].num_batches_tracked) == 2  # type: ignore[arg-type, union-attr]
    assert all(one.grad is not None for one in parameters)
