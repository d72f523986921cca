"""What the program itself does wrong, and honest programs that only look like it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stethos.diagnose.convergence.gradients_not_zeroed import GradientsNotZeroed
from stethos.diagnose.finding import Severity
from stethos.diagnose.program.implausible_loss import ImplausibleLoss
from stethos.diagnose.program.learning_rate_collapse import LearningRateCollapse
from stethos.diagnose.program.lost_gradients import LostGradients
from stethos.diagnose.program.odd_batch import OddBatch
from stethos.diagnose.program.odd_optimizer import OddOptimizer
from stethos.diagnose.program.odd_schedule import OddSchedule
from stethos.diagnose.program.unoptimized_parameters import UnoptimizedParameters
from stethos.diagnose.program.wrong_mode import WrongMode
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


@pytest.mark.parametrize(("apart", "severity"), [(50, Severity.WARNING), (2, Severity.INFO)])
def test_a_model_that_runs_without_gradients_in_every_step_is_not_evaluated(apart: int, severity: Severity) -> None:
    """A generator makes samples for its critic, a diffusion model predicts what it is then given."""
    rows = made.inspections(6, phase="evaluation", step=list(range(1, 1 + 6 * apart, apart)))
    (found,) = WrongMode().check(made.window(steps=made.steps(made.falling(400)), inspections=rows))
    assert found.severity == severity


@pytest.mark.parametrize(("heads", "found"), [(["b"], ["unoptimized-parameters"]), (["a", "b"], [])])
def test_heads_of_tasks_that_take_turns_are_not_cut_off(heads: list[str], found: list[str]) -> None:
    texts = [
        json.dumps({"unreached": [heads[at % len(heads)]], "unreached_count": 2, "optimized": 4}) for at in range(8)
    ]
    seen = made.window(steps=made.steps(made.falling(100)), inspections=made.inspections(detail=texts))
    assert made.names_in(UnoptimizedParameters(), seen) == found


@pytest.mark.parametrize(("order", "found"), [("turns", ["unoptimized-parameters"]), ("phases", [])])
def test_a_second_optimizer_may_follow_the_first(order: str, found: list[str]) -> None:
    steps = made.steps(made.falling(100))
    steps["optimizer"] = [1 + at % 2 if order == "turns" else 1 + at // 50 for at in range(100)]
    rows = made.inspections(detail=json.dumps({"shared": ["0.weight"]}))
    assert made.names_in(UnoptimizedParameters(), made.window(steps=steps, inspections=rows)) == found


@pytest.mark.parametrize(("losses", "severity"), [(made.falling(60), Severity.WARNING), ([1.0] * 60, Severity.INFO)])
def test_many_trainings_of_one_step_are_not_one(losses: list[float], severity: Severity) -> None:
    steps = made.steps(losses)
    steps["optimizer"] = list(range(60))
    (found,) = OddOptimizer().check(made.window(steps=steps, inspections=made.inspections()))
    assert (found.kind, found.severity) == ("optimizer-recreated", severity)


@pytest.mark.parametrize(("is_seen", "found"), [(True, ["odd-batch"]), (False, [])])
def test_attention_that_sees_what_it_is_to_predict(is_seen: bool, found: list[str]) -> None:
    rows = made.inspections(detail=json.dumps({"sees_answer": is_seen}))
    assert made.names_in(OddBatch(), made.window(steps=made.steps(made.falling(100)), inspections=rows)) == found


@pytest.mark.parametrize(("left", "severity"), [(1.5, Severity.WARNING), (0.05, Severity.INFO)])
def test_a_rate_may_fall_where_the_loss_is_gone(left: float, severity: Severity) -> None:
    losses = [*np.linspace(2.3, left, 50), *[left] * 100]
    rates = [0.1] * 60 + [1e-6] * 90
    (found,) = LearningRateCollapse().check(made.window(steps=made.steps(losses, lr=rates)))
    assert found.severity == severity


@pytest.mark.parametrize(
    ("losses", "rate", "found"),
    [
        ([0.2, *np.linspace(1.2, 0.3, 99)], 0.1, ["odd-schedule"]),  # goes on where the first one ended
        (np.linspace(2.3, 0.2, 100), 0.1, []),  # a model of its own, as for the next fold
        ([0.2, *np.linspace(1.2, 0.3, 99)], 0.5, []),  # another rate, as for other data
    ],
)
def test_a_new_optimizer_is_no_restart(losses: list[float], rate: float, found: list[str]) -> None:
    first = made.steps(made.falling(100), lr=np.geomspace(0.1, 0.001, 100).tolist())
    second = made.steps(losses, lr=[rate] * 100, optimizer=2)
    second["step"] = list(range(100, 200))
    both = {name: [*first[name], *second[name]] for name in first}
    assert made.names_in(OddSchedule(), made.window(steps=both, inspections=made.inspections())) == found
