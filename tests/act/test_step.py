"""Corrections of single steps, on a real optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stethos.act.action import CorrectionLimits, Mode
from stethos.act.step import StepCorrector


def train(corrector: StepCorrector | None, spoil: Callable[[int, torch.Tensor], torch.Tensor], steps: int = 60) -> Any:
    """Train a small model; return it and its optimizer."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    remove = corrector.install(lambda function: function) if corrector is not None else lambda: None
    try:
        for step in range(steps):
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            spoil(step, (model(x) - x.sum(1, keepdim=True)).square().mean()).backward()
            optimizer.step()
    finally:
        remove()
    return model, optimizer


def nan_once(step: int, loss: torch.Tensor) -> torch.Tensor:
    return loss * math.nan if step == 30 else loss


def test_a_step_with_nan_is_left_out_and_training_goes_on() -> None:
    corrector = StepCorrector("on")
    model, _ = train(corrector, nan_once)
    assert bool(model.weight.isfinite().all())
    assert [(one.what, one.first, one.unit) for one in corrector.actions] == [("skip-step", 31, "step")]


@pytest.mark.parametrize("mode", ["dry-run", "on"])
def test_a_sound_training_keeps_its_bits(mode: Mode) -> None:
    plain, _ = train(None, lambda step, loss: loss)
    corrector = StepCorrector(mode)
    watched, _ = train(corrector, lambda step, loss: loss)
    assert plain.weight.equal(watched.weight) and not corrector.actions


def test_a_dry_run_changes_nothing_either_when_it_has_something_to_say() -> None:
    corrector = StepCorrector("dry-run")
    plain, _ = train(None, lambda step, loss: loss * 1e3 if step == 30 else loss)
    watched, _ = train(corrector, lambda step, loss: loss * 1e3 if step == 30 else loss)
    assert plain.weight.equal(watched.weight) and corrector.actions[0].state == "proposed"


def test_a_gradient_far_beyond_the_usual_is_shortened() -> None:
    corrector = StepCorrector("on")
    model, _ = train(corrector, lambda step, loss: loss * 1e4 if step == 30 else loss)
    assert corrector.actions[0].what == "clip-gradient" and float(model.weight.detach().norm()) < 10


def test_not_more_steps_are_left_out_than_allowed() -> None:
    corrector = StepCorrector("on", limits=CorrectionLimits(skips=5))
    model, _ = train(corrector, lambda step, loss: loss * math.nan if step >= 20 else loss)
    assert not bool(model.weight.isfinite().all())
    assert [(one.what, one.state, one.times) for one in corrector.actions][:2] == [
        ("skip-step", "active", 5),
        ("skip-step", "refused", 35),
    ]


def test_the_rate_is_lowered_when_gradients_and_weights_both_say_so() -> None:
    corrector = StepCorrector("on")

    def explode(step: int, loss: torch.Tensor) -> torch.Tensor:
        return loss * 50 if step >= 25 else loss

    _, optimizer = train(corrector, explode)
    lowered = [one for one in corrector.actions if one.what == "lower-rate" and one.state == "active"]
    assert bool(lowered) == (optimizer.param_groups[0]["lr"] < 0.05)
