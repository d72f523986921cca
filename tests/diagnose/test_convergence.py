"""Trainings that do not get where they should: a true case, a near miss and an empty case each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import training_rows as made

from stethos.diagnose.convergence.detached_loss import DetachedLoss
from stethos.diagnose.convergence.divergence import Divergence
from stethos.diagnose.convergence.gradients_not_zeroed import GradientsNotZeroed
from stethos.diagnose.convergence.learning_rate_too_high import LearningRateTooHigh
from stethos.diagnose.convergence.learning_rate_too_low import LearningRateTooLow
from stethos.diagnose.convergence.oscillation import Oscillation
from stethos.diagnose.convergence.overfitting import Overfitting
from stethos.diagnose.convergence.plateau import Plateau
from stethos.diagnose.convergence.slow_progress import SlowProgress
from stethos.diagnose.detector import CannotTell
from stethos.diagnose.engine import examine
from stethos.diagnose.finding import Severity
from stethos.diagnose.numbers.non_finite_loss import NonFiniteLoss
from stethos.diagnose.training import trainings_of
from stethos.diagnose.window import Window

STUCK = 2.3 + made.noise(300, 0.02)


def only_loss(loss: Any, **columns: Any) -> Window:
    return made.window(steps=made.steps(loss, **columns))  # type: ignore[no-any-return]


def turns(*losses: Any, **columns: Any) -> Window:
    """A loop over clients that tells nothing of rounds: an optimizer per turn."""
    optimizer = [number + 1 for number, turn in enumerate(losses) for _ in turn]
    return only_loss(np.concatenate(losses), optimizer=optimizer, **columns)


def healthy_turns(count: int = 30, steps: int = 12) -> list[Any]:
    """Each begins higher than the last one ended, as another client's data are new to it."""
    return [
        (2.3 * 0.9**turn + 0.1) * np.linspace(1.2, 0.8, steps) + made.noise(steps, 0.02, turn) for turn in range(count)
    ]


# Putting rows together -------------------------------------------------------------------------------


def test_turns_on_one_model_are_one_training() -> None:
    (one,) = trainings_of(turns(*healthy_turns()))
    assert one.is_relay and len(one) == 360


def test_models_trained_anew_each_time_are_trainings_of_their_own() -> None:
    found = trainings_of(turns(*[made.falling(80) for _ in range(5)]))
    assert [one.is_relay for one in found] == [False] * 5


def test_two_optimizers_against_each_other_are_rivals() -> None:
    rows = made.steps(np.tile([1.0, 3.0], 100), optimizer=[1, 2] * 100, model=["A", "B"] * 100)
    assert [one.has_rival for one in trainings_of(made.window(steps=rows))] == [True, True]


# Up --------------------------------------------------------------------------------------------------


def test_a_loss_that_goes_up_again_diverges() -> None:
    (finding,) = Divergence().check(only_loss(np.concatenate([made.falling(200), np.linspace(0.2, 6, 100)])))
    assert finding.subject.first is not None and 200 <= finding.subject.first <= 240
    assert finding.evidence[0].series and len(finding.evidence[0].series) <= 60 and "SELECT" in finding.evidence[0].sql


def test_a_converged_loss_that_doubles_has_not_diverged() -> None:
    loss = np.concatenate([made.falling(200, end=0.01), np.linspace(0.01, 0.03, 100)])
    assert made.names_in(Divergence(), only_loss(loss)) == []


def test_turns_of_clients_that_begin_higher_do_not_diverge() -> None:
    assert made.names_in(Divergence(), turns(*healthy_turns())) == []


def test_a_loss_that_leaves_the_numbers_at_once_diverges() -> None:
    broken = [2.3, 90.0, 1e6, 1e30, np.nan]
    (finding,) = Divergence().check(turns(broken, *[[np.nan] * 5] * 4))
    assert finding.subject.first == 1 and "to nan" in finding.title


@pytest.mark.parametrize("detector", [Divergence, Oscillation, SlowProgress, Plateau, LearningRateTooLow])
def test_too_few_steps_are_said_to_be_too_few(detector: Any) -> None:
    with pytest.raises(CannotTell, match="4 steps with a loss"):
        list(detector().check(only_loss([2.3, 2.2, 2.1, 2.0])))


def test_rounds_are_judged_by_their_evaluation() -> None:
    steps = made.steps(made.falling(40), round=[float(number // 4) for number in range(40)])
    rising = {"federation": ["f"] * 10, "round": list(range(10)), "loss": [2.3, 1.5, 1.2, 1.4, 2, 3, 4, 5, 6, 7]}
    (finding,) = Divergence().check(made.window(steps=steps, rounds=rising))
    assert finding.subject.unit == "round" and finding.subject.process is None
    falling = {**rising, "loss": [2.3, 1.5, 1.2, 1.4, 1, 0.8, 0.9, 0.5, 0.6, 0.5]}
    assert made.names_in(Divergence(), made.window(steps=steps, rounds=falling)) == []


def test_a_first_step_that_throws_the_loss_up_is_a_rate_too_high() -> None:
    (finding,) = LearningRateTooHigh().check(only_loss([2.3, 200.0, 9000.0, *(18 + made.noise(200))], lr=50.0))
    assert finding.detail["lr"] == 50 and finding.next_step.startswith("lower lr from 50 to about")


def test_a_jump_is_being_made_good_while_the_loss_goes_on_falling() -> None:
    jump, slowly = [0.9, 4.6, 8.9, 3.6, 6.1], np.linspace(1.5, 0.75, 70)
    assert made.names_in(LearningRateTooHigh(), only_loss([*jump, *slowly])) == []
    assert made.names_in(LearningRateTooHigh(), only_loss([*jump, *(0.85 + made.noise(70, 0.1))])) != []


def test_a_jump_that_is_made_good_is_no_rate_too_high() -> None:
    assert made.names_in(LearningRateTooHigh(), only_loss([2.3, 9.0, 12.0, *made.falling(200)])) == []


def test_a_nan_out_of_a_low_loss_is_no_rate_too_high() -> None:
    jumped = [3.4, 11.8, 3.3, 2.0, 1.4, *(0.1 + np.abs(made.noise(115, 0.05)))]
    assert made.names_in(LearningRateTooHigh(), only_loss([*jumped, np.inf, *[np.nan] * 79])) == []
    grown = [*jumped, 20.0, 900.0, 4e7]
    assert made.names_in(LearningRateTooHigh(), only_loss([*grown, *[np.nan] * 79])) != []


def test_a_rate_raised_half_way_is_named_since_then() -> None:
    loss = np.concatenate([made.falling(150), 30 + made.noise(150)])
    (finding,) = LearningRateTooHigh().check(only_loss(loss, lr=[0.1] * 150 + [40.0] * 150))
    assert finding.subject.first == 150 and finding.detail["lr"] == 40


def test_warm_restarts_are_no_rate_too_high() -> None:
    loss, rates = made.falling(300), list(np.tile(np.linspace(0.2, 0.001, 75), 4))
    assert made.names_in(LearningRateTooHigh(), only_loss(loss, lr=rates)) == []


# In circles ------------------------------------------------------------------------------------------


def test_a_loss_that_swings_oscillates() -> None:
    loss = 1 + 0.4 * np.sin(np.arange(300) / 4) + made.noise(300, 0.02)
    (finding,) = Oscillation().check(only_loss(loss))
    assert finding.detail["period"] == pytest.approx(25, abs=3)


def test_a_loss_that_changes_sides_at_every_step_oscillates() -> None:
    assert made.names_in(Oscillation(), only_loss(1 + 0.4 * (-1.0) ** np.arange(100))) == ["oscillation"]


def test_one_jump_that_is_learned_down_again_does_not_oscillate() -> None:
    """As where another task begins; the mean of its neighbours is far from each loss around it."""
    quiet = 0.15 + made.noise(240, 0.03)
    quiet[150:190] += 1.6 * np.exp(-np.arange(40) / 12) * (1 + 0.3 * (-1.0) ** (np.arange(40) // 3))
    losses = np.concatenate([made.falling(60, end=0.15), quiet])
    assert made.names_in(Oscillation(), only_loss(losses)) == []


def test_a_fast_descent_does_not_oscillate() -> None:
    assert made.names_in(Oscillation(), only_loss(2.3 * 0.7 ** np.arange(30))) == []


def test_the_noise_of_small_batches_does_not_oscillate() -> None:
    assert made.names_in(Oscillation(), only_loss(1 + np.abs(made.noise(300, 0.5)))) == []


@pytest.mark.parametrize("count", [12, 24, 40])
def test_a_few_losses_of_small_batches_resemble_each_other_by_chance(count: int) -> None:
    chance = np.random.default_rng(count)
    series = chance.chisquare(4, (60, count)) * (1 + 2 * np.exp(-np.arange(count) * 6 / count))
    assert sum(bool(made.names_in(Oscillation(), only_loss(one))) for one in series) <= 1


def test_a_loss_that_rises_until_it_is_infinite_is_one_finding() -> None:
    loss = np.concatenate([5.0 * 10.0 ** np.arange(34), [np.inf] * 20])
    (cause,) = examine(only_loss(loss), [Divergence(), NonFiniteLoss()]).findings
    assert cause.name == "divergence" and [one.name for one in cause.consequences] == ["non-finite-loss"]


# Too slowly ------------------------------------------------------------------------------------------


def test_a_loss_that_creeps_down_is_slow() -> None:
    loss = np.linspace(2.3, 2.1, 400) + made.noise(400, 0.02)
    assert made.names_in(SlowProgress(), only_loss(loss)) == ["slow-progress"]
    assert made.names_in(SlowProgress(), only_loss(made.falling(400))) == []


def test_a_loss_that_has_fallen_by_a_tenth_learns() -> None:
    (hardly,) = SlowProgress().check(only_loss(np.linspace(2.3, 2.15, 400) + made.noise(400, 0.02)))
    (slowly,) = SlowProgress().check(only_loss(np.linspace(2.3, 1.9, 400) + made.noise(400, 0.02)))
    assert (hardly.severity, slowly.severity) == (Severity.WARNING, Severity.INFO)


def test_one_that_hardly_creeps_is_told_once_and_in_steps_not_in_turns() -> None:
    levels = 2.34 - 0.05 * (1 - np.exp(-np.linspace(0, 3, 300)))
    seen = turns(*[level + made.noise(8, 0.01, number) for number, level in enumerate(levels)])
    (cause,) = examine(seen, [SlowProgress(), Plateau()]).findings
    assert "2,400 steps" in cause.title and [one.name for one in cause.consequences] == ["plateau"]
    assert "2,400 steps" in cause.consequences[0].title


def test_a_loss_that_is_thrown_far_up_has_not_fallen_slowly() -> None:
    thrown = np.concatenate([np.full(12, 1.3), np.geomspace(2.2e4, 5e3, 108)]) * np.exp(made.noise(120, 0.02))
    assert made.names_in(SlowProgress(), only_loss(thrown)) == []


def test_a_loss_that_stays_far_above_its_start_is_told_to_have_risen() -> None:
    thrown = np.concatenate([np.full(12, 1.3), np.full(108, 5e3)]) * np.exp(made.noise(120, 0.02))
    (finding,) = Plateau().check(only_loss(thrown))
    assert finding.title == "the loss has risen and stays there: 5.03e+03 after 120 steps, 1.3 at the start"


def test_turns_are_not_called_rounds() -> None:
    with pytest.raises(CannotTell, match="12 turns with a loss, 30 needed"):
        list(SlowProgress().check(turns(*healthy_turns(12))))


def test_a_loss_that_never_moved_is_a_plateau() -> None:
    (finding,) = Plateau().check(only_loss(STUCK))
    assert finding.severity == Severity.WARNING


def test_a_trained_model_that_goes_on_is_no_plateau() -> None:
    assert made.names_in(Plateau(), only_loss(0.05 + np.abs(made.noise(300, 0.02)))) == []


def test_a_loss_that_fell_and_stopped_half_way_is_only_mentioned() -> None:
    loss = made.falling(400, start=2.0, end=1.2, rate=30)
    assert [one.severity for one in Plateau().check(only_loss(loss))] == [Severity.INFO]


def moved(per_step: float) -> Any:
    drift = [per_step * 6.4 * 10 * sample for sample in range(30)]
    return made.layers(30, weight__a_weight={"norm": 6.4, "drift": drift}, gradient__a_weight={"norm": 0.3})


def test_weights_that_hardly_move_tell_of_a_rate_too_low() -> None:
    steps = made.steps(STUCK, lr=1e-6, grad_norm=0.5)
    (finding,) = LearningRateTooLow().check(made.window(steps=steps, layers=moved(1e-7)))
    assert "raise lr from 1e-06 to about 0.01" in finding.next_step
    assert made.names_in(LearningRateTooLow(), made.window(steps=steps, layers=moved(1e-3))) == []


def test_a_rate_of_zero_is_too_low() -> None:
    assert made.names_in(LearningRateTooLow(), only_loss(STUCK, lr=0.0)) == ["learning-rate-too-low"]


def test_a_schedule_that_ends_at_zero_is_fine() -> None:
    assert made.names_in(LearningRateTooLow(), only_loss(made.falling(300), lr=list(np.linspace(0.1, 0, 300)))) == []


# Nowhere ---------------------------------------------------------------------------------------------


def held_out(values: Any, loss: Any = None) -> Window:
    steps = made.steps(made.falling(400, end=0.01) if loss is None else loss)
    return made.window(steps=steps, metrics=made.metrics("val/loss", values, every=20))  # type: ignore[no-any-return]


def test_a_validation_loss_that_rises_while_training_goes_on_is_overfitting() -> None:
    values = [*np.linspace(2.3, 0.5, 8), *np.linspace(0.52, 1.0, 12)]
    (finding,) = Overfitting().check(held_out(values))
    assert finding.detail["best_at"] == 140


@pytest.mark.parametrize(
    "values",
    [
        [*np.linspace(2.3, 0.5, 8), *np.linspace(0.5, 0.55, 12)],  # hardly rises
        np.linspace(2.3, 0.5, 20),  # falls
        [0.5, 0.9],  # too few
    ],
)
def test_a_validation_loss_that_stays_is_no_overfitting(values: Any) -> None:
    assert made.names_in(Overfitting(), held_out(values)) == []


def test_losses_that_rise_together_are_no_overfitting() -> None:
    values = [*np.linspace(2.3, 0.5, 8), *np.linspace(0.52, 5.0, 12)]
    loss = np.concatenate([made.falling(150), np.linspace(0.2, 4.5, 250)])
    assert made.names_in(Overfitting(), held_out(values, loss)) == []


@pytest.mark.parametrize("norm", [None, 0.0])
def test_a_loss_without_any_gradient_is_detached(norm: float | None) -> None:
    rows = made.layers(5, gradient__a_weight={"norm": norm}, weight__a_weight={"drift": 0.0})
    assert made.names_in(DetachedLoss(), made.window(steps=made.steps(STUCK), layers=rows)) == ["detached-loss"]


def test_one_layer_with_a_gradient_is_connection_enough() -> None:
    rows = made.layers(5, gradient__a_weight={"norm": None}, gradient__b_weight={"norm": 0.1})
    assert made.names_in(DetachedLoss(), made.window(steps=made.steps(STUCK), layers=rows)) == []


def test_gradients_that_add_up_were_not_zeroed() -> None:
    norms = 0.4 * (np.arange(100) + 1) ** 0.95
    assert made.names_in(GradientsNotZeroed(), only_loss(made.falling(100), grad_norm=norms)) == [
        "gradients-not-zeroed"
    ]


@pytest.mark.parametrize(
    "norms",
    [0.5 + np.abs(made.noise(100, 0.1)), 0.4 * np.exp(np.arange(100) / 15), np.linspace(0.5, 1.5, 100)],
)
def test_gradients_that_grow_otherwise_were(norms: Any) -> None:
    assert made.names_in(GradientsNotZeroed(), only_loss(made.falling(100), grad_norm=norms)) == []


def test_rivals_are_not_blamed_for_a_loss_that_stays() -> None:
    both = np.column_stack([STUCK, 0.7 + made.noise(300, 0.02)]).ravel()
    rows = made.steps(both, optimizer=[1, 2] * 300, model=["A", "B"] * 300)
    seen = made.window(steps=rows)
    found = [name for detector in (Divergence, Oscillation, SlowProgress, Plateau, LearningRateTooLow)
             for name in made.names_in(detector(), seen)]  # fmt: skip
    assert found == []


@pytest.mark.parametrize("are_rivals", [True, False])
def test_a_federated_gan_is_not_blamed_for_a_loss_that_stays(are_rivals: bool) -> None:
    """Clients in threads have optimizers side by side as well: those are of different clients."""
    rounds, turn = 30, 8
    count = rounds * turn
    rows = made.steps(
        np.tile([0.7, 1.4], count), optimizer=[1, 2] * count, model=["A", "B"] * count,
        client=["a", "a" if are_rivals else "b"] * count, round=np.repeat(np.arange(1, rounds + 1), 2 * turn).tolist(),
    )  # fmt: skip
    told = {
        "federation": ["toy"] * 2 * rounds, "round": np.repeat(np.arange(1, rounds + 1), 2).tolist(),
        "client": ["a", "b"] * rounds, "entry_loss": (1 + made.noise(2 * rounds, 0.01)).tolist(),
    }  # fmt: skip
    found = made.names_in(Plateau(), made.window(steps=rows, client_rounds=told))
    assert found == ([] if are_rivals else ["plateau"])


@pytest.mark.parametrize(("clients", "found"), [(("a", "b"), ["oscillation"]), (("day", "night"), [])])
def test_a_loss_that_swings_with_who_takes_part_is_no_oscillation(clients: tuple[str, str], found: list[str]) -> None:
    """Two groups of clients that take turns, the one with harder data; or all of them each time."""
    is_same = clients == ("a", "b")
    turns = [
        (number, client) for number in range(1, 31) for client in (clients if is_same else clients[number % 2 :][:1])
    ]
    rows = {
        "federation": ["toy"] * len(turns), "round": [number for number, _ in turns],
        "client": [client for _, client in turns], "entry_loss": [1 + 0.4 * (-1.0) ** number for number, _ in turns],
    }  # fmt: skip
    window = made.window(steps=made.steps(np.ones(4)), client_rounds=rows)
    diagnosis = examine(window, [Oscillation()])
    assert [one.name for one in diagnosis.findings] == found
    assert is_same or "other clients" in diagnosis.not_checked[0].reason


def test_swings_around_a_level_that_falls_are_a_remark() -> None:
    place = np.arange(400)
    falls = np.linspace(0.6, 0.3, 400) * (1 + 0.35 * np.sin(2 * np.pi * place / 12))
    assert [one.severity for one in Oscillation().check(only_loss(falls))] == [Severity.INFO]
    stays = 0.5 * (1 + 0.3 * np.sin(2 * np.pi * place / 12))
    assert [one.severity for one in Oscillation().check(only_loss(stays))] == [Severity.WARNING]


@pytest.mark.parametrize(("end", "severity"), [(0.001, Severity.INFO), (9.0, Severity.ERROR)])
def test_a_difference_that_comes_back_to_zero_does_not_diverge(end: float, severity: Severity) -> None:
    """As that of a critic's answers does when what is made gets better."""
    losses = np.concatenate([np.linspace(-0.06, -0.23, 60), np.linspace(-0.23, end, 60), np.full(40, end)])
    (found,) = Divergence().check(only_loss(losses))
    assert found.severity == severity


@pytest.mark.parametrize(("end", "severity"), [(0.1, Severity.INFO), (2.2, Severity.WARNING)])
def test_a_rate_that_was_searched_for_may_leave_a_plateau(end: float, severity: Severity) -> None:
    first, then = made.steps(2.3 + made.noise(120, 0.02)), made.steps(made.falling(200, end=end), optimizer=2)
    then["step"] = [step + 120 for step in then["step"]]
    both = {name: [*first[name], *then[name]] for name in first}
    found = [one for one in Plateau().check(made.window(steps=both)) if one.subject.first == 0]
    assert [one.severity for one in found] == [severity]
