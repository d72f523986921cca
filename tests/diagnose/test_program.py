"""What the program itself does wrong, and honest programs that only look like it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stethos.diagnose.convergence.gradients_not_zeroed import GradientsNotZeroed
from stethos.diagnose.program.implausible_loss import ImplausibleLoss
from stethos.diagnose.program.lost_gradients import LostGradients
from tests import training_rows as made

BELOW_ZERO = np.linspace(2.0, -0.5, 100)


@pytest.mark.parametrize(("is_alone", "found"), [(True, ["implausible-loss"]), (False, [])])
def test_a_square_is_never_negative_but_a_likelihood_with_one_may_be(is_alone: bool, found: list[str]) -> None:
    rows = made.inspections(function="square", detail=json.dumps({"is_alone": is_alone}))
    seen = made.window(steps=made.steps(BELOW_ZERO), inspections=rows)
    assert made.names_in(ImplausibleLoss(), seen) == found


@pytest.mark.parametrize(("left", "found"), [(0.4, ["gradients-not-zeroed"]), (0.0, [])])
def test_what_is_left_of_earlier_gradients_decides(left: float, found: list[str]) -> None:
    """A norm that grows with the steps is no proof where each backward began without gradients."""
    norms = 0.4 * (np.arange(100) + 1) ** 0.95
    seen = made.window(
        steps=made.steps(made.falling(100), grad_norm=norms),
        inspections=made.inspections(leftover_norm=[None] + [left] * 7),
    )
    assert made.names_in(GradientsNotZeroed(), seen) == found


def test_a_second_training_that_does_not_zero_is_seen_behind_a_healthy_one() -> None:
    first, second = made.steps(made.falling(50)), made.steps(made.falling(50), optimizer=2)
    second["step"] = list(range(50, 100))
    both = {name: [*first[name], *second[name]] for name in first}
    rows = made.inspections(8, step=[1, 2, 3, 4, 50, 51, 52, 53], leftover_norm=[0.0] * 5 + [0.3] * 3)
    (found,) = GradientsNotZeroed().check(made.window(steps=both, inspections=rows))
    assert found.subject.first == 50


@pytest.mark.parametrize(("level", "found"), [(0.3, ["lost-gradients"]), (0.0, [])])
def test_no_gradient_is_due_where_the_loss_is_zero(level: float, found: list[str]) -> None:
    losses = [*made.falling(60), *[level] * 40]
    norms = [0.5] * 60 + [0.0] * 40
    seen = made.window(steps=made.steps(losses, grad_norm=norms), inspections=made.inspections())
    assert made.names_in(LostGradients(), seen) == found
