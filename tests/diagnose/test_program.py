"""What the program itself does wrong, and honest programs that only look like it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stethos.diagnose.convergence.divergence import Divergence
from stethos.diagnose.convergence.gradients_not_zeroed import GradientsNotZeroed
from stethos.diagnose.convergence.learning_rate_too_high import LearningRateTooHigh
from stethos.diagnose.convergence.overfitting import Overfitting
from stethos.diagnose.finding import Severity
from stethos.diagnose.numbers.series_anomaly import SeriesAnomaly
from stethos.diagnose.program.implausible_loss import ImplausibleLoss
from stethos.diagnose.program.learning_rate_collapse import LearningRateCollapse
from stethos.diagnose.program.lost_gradients import LostGradients
from stethos.diagnose.program.odd_batch import OddBatch
from stethos.diagnose.program.odd_evaluation import OddEvaluation
from stethos.diagnose.program.odd_optimizer import OddOptimizer
from stethos.diagnose.program.odd_schedule import OddSchedule
from stethos.diagnose.program.repeated_data import RepeatedData
from stethos.diagnose.program.unoptimized_parameters import UnoptimizedParameters
from stethos.diagnose.program.wrong_loss import WrongLoss
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


@pytest.mark.parametrize(
    ("modes", "passes", "backwards", "kinds"),
    [
        ([1, 1, 0, 0, 1, 1, 0, 0], [1, 1, 2, 2, 3, 3, 4, 4], 1, ["evaluation-trains"]),
        ([1, 0, 0, 1, 0, 0, 1, 1], [1, 2, 2, 3, 4, 4, 5, 5], 1, ["evaluation-trains"]),
        ([1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 2, 2, 3, 3, 4, 4], 1, ["evaluation-mode-in-training"]),  # never back
        ([1, 0, 1, 0, 1, 0, 1, 1], [1, 1, 2, 2, 3, 3, 4, 4], 1, []),  # two modes in each pass, as in meta-learning
        ([1, 0, 0, 1, 0, 0, 1, 1], [1, 2, 2, 3, 4, 4, 5, 5], 2, []),  # an attack beside the step's own backward
        ([1, 0, 1, 0, 1, 0, 1, 1], [0] * 8, 1, []),  # no loader tells passes apart
    ],
)
def test_an_evaluation_that_trains_has_passes_of_its_own(
    modes: list[int], passes: list[int], backwards: int, kinds: list[str]
) -> None:
    rows = made.inspections(
        stateful_training=modes, root_training=modes, detail=[json.dumps({"passes": each}) for each in passes]
    )
    seen = made.window(steps=made.steps(made.falling(100), backwards=[backwards] * 100), inspections=rows)
    assert [one.kind for one in WrongMode().check(seen)] == kinds


@pytest.mark.parametrize(
    ("maker_loss", "critic_loss", "block", "labels", "leaves", "kinds"),
    [
        (0.08, 0.5, 1, [0.0], 10, ["rivals-agree"]),
        (0.08, 3.0, 1, [1.0], 10, []),  # the critic is deceived
        (4.0, 0.1, 1, [1.0], 10, []),  # the critic has won
        (0.7, 1.4, 1, [1.0], 10, []),  # neither
        (0.08, 0.5, 50, [0.0], 10, []),  # each wins in its turns
        (0.08, 0.5, 1, [0.0, 1.0], 10, []),  # labels of a task
        (0.08, 0.5, 1, [0.0], 4, []),  # two models that have nothing to do with each other
    ],
)
def test_a_generator_and_its_critic_cannot_both_win(
    maker_loss: float, critic_loss: float, block: int, labels: list[float], leaves: int, kinds: list[str]
) -> None:
    is_maker = (np.arange(200) // block) % 2 == 1
    losses = np.where(is_maker, maker_loss, critic_loss) * (1 + np.linspace(0.5, 0, 200))
    steps = made.steps(losses, optimizer=(1 + is_maker).tolist(), model=["Gen" if one else "Dis" for one in is_maker])
    critic = [int(at) for at in np.flatnonzero(~is_maker)[:4]]
    maker = [int(at) for at in np.flatnonzero(is_maker)[:4]]
    wanted = [0.0, 1.0, 0.0, 1.0] + [labels[at % len(labels)] for at in range(4)]
    rows = made.inspections(
        step=critic + maker, function="BinaryCrossEntropy", leaves=[4] * 4 + [leaves] * 4, label_mean=wanted,
        label_min=wanted, label_max=wanted, classes=1, detail=json.dumps({"is_alone": True}),
    )  # fmt: skip
    found = ImplausibleLoss().check(made.window(steps=steps, inspections=rows))
    assert [one.kind for one in found if one.kind == "rivals-agree"] == kinds


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


@pytest.mark.parametrize(
    ("spread", "losses", "found"),
    [
        (0.002, [1.39] * 100, ["inputs-alike"]),
        (0.002, made.falling(100), []),  # a first layer that copes with it
        (0.5, [1.39] * 100, []),
    ],
)
def test_samples_that_are_all_alike_teach_nothing(spread: float, losses: list[float], found: list[str]) -> None:
    rows = made.inspections(detail=json.dumps({"input_spread": spread}))
    seen = made.window(steps=made.steps(losses), inspections=rows)
    assert [one.kind for one in OddBatch().check(seen)] == found


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


@pytest.mark.parametrize(
    ("backwards", "found"),
    [([1] * 100, []), ([1, 0] * 50, ["stepped-again"]), ([0] * 100, []), ([1, 1, 1, 0] * 25, [])],
)
def test_a_second_step_after_a_backward(backwards: list[int], found: list[str]) -> None:
    """Steps without any backward are gradients that a program assigns; a few are what it retries."""
    seen = made.window(steps=made.steps(made.falling(100), backwards=backwards), inspections=made.inspections())
    assert [one.kind for one in OddOptimizer().check(seen)] == found


def test_two_optimizers_may_step_after_one_backward() -> None:
    rows = made.steps(made.falling(100), backwards=[1, 0] * 50)
    rows["optimizer"] = [1, 2] * 50
    assert made.names_in(OddOptimizer(), made.window(steps=rows, inspections=made.inspections())) == []


@pytest.mark.parametrize(("decay", "found"), [(1.0, ["weight-decay-too-high"]), (1e-4, [])])
def test_a_rate_of_a_hundred_is_not_called_a_weight_decay(decay: float, found: list[str]) -> None:
    """Both take 1 % of each weight per step, but only one of them for its decay."""
    detail = json.dumps({"weight_decay": decay, "decay_per_step": 0.01})
    seen = made.window(steps=made.steps([2.3] * 100), inspections=made.inspections(detail=detail))
    assert [one.kind for one in OddOptimizer().check(seen)] == found


@pytest.mark.parametrize(("classes", "found"), [(1, []), (4, ["learning-rate-too-high", "divergence"])])
def test_a_loss_may_rise_where_a_pair_is_told_from_ever_more_others(classes: int, found: list[str]) -> None:
    losses = np.concatenate([np.linspace(0.2, 5.0, 60), np.full(240, 4.5)]) + made.noise(300, 0.02)
    labels = {"classes": classes, "label_mean": 0.0 if classes == 1 else [float(at) for at in range(8)]}
    seen = made.window(steps=made.steps(losses), inspections=made.inspections(outputs=1025, **labels))
    assert made.names_in(LearningRateTooHigh(), seen) + made.names_in(Divergence(), seen) == found


@pytest.mark.parametrize(
    ("is_alone", "level", "severity"),
    [(True, 0.135, Severity.WARNING), (True, 0.05, Severity.INFO), (False, 0.135, Severity.INFO)],
)
def test_a_rare_class_is_a_fault_only_where_it_is_not_told_apart(
    is_alone: bool, level: float, severity: Severity
) -> None:
    """0.135 is what a model gives that knows of nothing but the 97 %."""
    rows = made.inspections(
        classes=2, top_class_share=0.97, outputs=None, label_mean=0.03, label_std=0.17,
        function="BinaryCrossEntropyWithLogits", detail=json.dumps({"is_alone": is_alone}),
    )  # fmt: skip
    losses = made.falling(200, start=0.7, end=level)
    (found,) = OddBatch().check(made.window(steps=made.steps(losses), inspections=rows))
    assert (found.kind, found.severity) == ("one-class-dominates", severity)


@pytest.mark.parametrize(("moves", "found"), [(True, []), (False, ["series-anomaly"])])
def test_a_loss_whose_goal_follows_the_model_may_jump(moves: bool, found: list[str]) -> None:
    """A target network is brought up to date; a teacher that never changes is a goal like any other."""
    weights = [1, 1, 2, 2, 3, 3] if moves else [1] * 6
    details = [json.dumps({"helper": 0, "is_copy": True, "weights": one}) for one in weights]
    losses = np.concatenate([np.full(150, 0.001), [0.9], np.full(149, 0.001)]) + np.abs(made.noise(300, 1e-4))
    seen = made.window(
        steps=made.steps(losses),
        inspections=made.inspections(6, phase="helper", step=[1, 2, 3, 4, 26, 90], detail=details),
    )
    assert made.names_in(SeriesAnomaly(), seen) == found


@pytest.mark.parametrize(("depth", "found"), [(1e9, ["unbounded-loss"]), (30.0, [])])
def test_a_loss_that_leaves_all_measure_below_zero_has_no_bound(depth: float, found: list[str]) -> None:
    """It need not fall to the end: where weights are 1e20, steps no longer count. A likelihood ends somewhere."""
    losses = np.concatenate([np.linspace(45.0, -2.0, 60), -np.geomspace(2.0, depth, 40), np.full(100, -depth)])
    rows = made.inspections(function="BinaryCrossEntropy", detail=json.dumps({"is_alone": False}))
    seen = made.window(steps=made.steps(losses), inspections=rows)
    assert [one.kind for one in ImplausibleLoss().check(seen)] == found


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"weights": {"0.weight": 17, "0.bias": 4}}, []),
        ({"sampler_weights": 4000}, []),
        ({"sampler_weights": 10}, ["few-samples"]),
        ({"weights": 10}, ["few-samples"]),
    ],
)
def test_the_weights_of_a_rank_are_not_those_of_a_sampler(facts: dict[str, object], found: list[str]) -> None:
    """A rank notes checksums of its model's weights; older runs have the number of a sampler's under the same name."""
    detail = json.dumps({"dataset": 4000, "used": 4000, "drawn_per_pass": 4000, "batch_size": 32, **facts})
    seen = made.window(steps=made.steps(made.falling(100)), inspections=made.inspections(detail=detail))
    assert [one.kind for one in RepeatedData().check(seen)] == found


def passes(levels: list[list[float]], length: int = 20) -> dict[str, object]:
    """Rows of steps: an optimizer for each pass, whose loss goes from one level to the other."""
    losses = np.concatenate([np.linspace(*level, length) for level in levels])
    return made.steps(losses, optimizer=[float(1 + place // length) for place in range(len(losses))])


@pytest.mark.parametrize(
    ("levels", "starts", "found"),
    [
        ([[2.3, 1.2]] * 5, range(5), ["model-recreated"]),
        ([[2.3, 1.5], [1.5, 1.0], [1.0, 0.8], [0.8, 0.6], [0.6, 0.5]], range(5), ["optimizer-recreated"]),
        ([[2.3, 1.2]] * 5, [0], []),  # folds of some passes each begin elsewhere
        ([[2.3, 1.2]] * 3, range(3), []),
        ([[2.3, 2.3]] * 5, range(5), []),
    ],
)
def test_what_is_made_anew_at_each_pass(levels: list[list[float]], starts: range, found: list[str]) -> None:
    first = [20 * place for place in starts]
    others = [step + 1 for step in first]
    rows = made.inspections(
        len(first) + len(others), step=sorted([*first, *others]), epoch_start=[1, 0] * len(first),
        detail=json.dumps({"betas": [0.9, 0.999]}),
    )  # fmt: skip
    seen = made.window(steps=passes(levels), inspections=rows)
    assert [one.kind for one in OddOptimizer().check(seen)] == found


@pytest.mark.parametrize(("level", "found"), [(0.0, ["always-zero"]), (0.001, [])])
def test_a_loss_that_is_zero_from_the_first_step_on(level: float, found: list[str]) -> None:
    rows = made.inspections(detail=json.dumps({"is_alone": True}))
    seen = made.window(steps=made.steps([level] * 60), inspections=rows)
    assert [one.kind for one in ImplausibleLoss().check(seen) if one.kind == "always-zero"] == found


@pytest.mark.parametrize(
    ("function", "level", "fall", "prior", "found"),
    [
        ("MseLoss", 4.0, 0.0, 4.0, ["constant-level"]), ("MseLoss", 2.0, 0.0, 4.0, []), ("MseLoss", 4.0, 0.0, None, []),
        ("MseLoss", 4.0, 0.1, 4.0, []), ("BinaryCrossEntropyWithLogits", 0.36, 0.0, 0.35, ["shares-level"]),
        ("BinaryCrossEntropyWithLogits", 0.3, 0.0, 0.35, []), ("NllLoss", 1.0, 0.0, 1.0, ["shares-level"]),
        ("NllLoss", 0.9, 0.0, 1.0, []),
    ],
)  # fmt: skip
def test_a_loss_at_the_level_of_a_constant_answer(
    function: str, level: float, fall: float, prior: float | None, found: list[str]
) -> None:
    detail = {"is_alone": True} | ({"prior": prior} if prior is not None else {})
    rows = made.inspections(function=function, detail=json.dumps(detail))
    losses = level * (1 + made.noise(200, 0.02) + np.linspace(fall, -fall, 200))
    seen = made.window(steps=made.steps(losses), inspections=rows)
    assert [one.kind for one in ImplausibleLoss().check(seen)] == found


@pytest.mark.parametrize(("applied", "found"), [(0.5, []), (0.5 * 4096, ["still-scaled"])])
def test_gradients_that_are_still_scaled_at_the_step(applied: float, found: list[str]) -> None:
    rows = made.inspections(gradient_norm=0.5 * 4096, detail=json.dumps({"scale": 4096.0}))
    seen = made.window(steps=made.steps(made.falling(60), grad_norm=applied), inspections=rows)
    assert [one.kind for one in LostGradients().check(seen)] == found


@pytest.mark.parametrize(("in_vain", "severity"), [([], Severity.INFO), (["head"], Severity.WARNING)])
def test_a_layer_that_runs_in_vain_is_more_than_an_unused_one(in_vain: list[str], severity: Severity) -> None:
    facts = {"unreached": ["head.weight"], "unreached_count": 1, "optimized": 10}
    seen = made.window(
        steps=made.steps(made.falling(60)),
        inspections=made.inspections(detail=json.dumps({**facts, "in_vain": in_vain})),
    )
    (found,) = UnoptimizedParameters().check(seen)
    assert (found.kind, found.severity) == ("cut-off", severity)


def evaluations(**facts: object) -> dict[str, object]:
    """Inspections of batches that are 95 % right, and of four evaluations."""
    asked = {"answers": 200, "classes": 5, "hits": 0.9, "top_answer": 0.3, "top_label": 0.25, "renamed": 0.9,
             "known": False, "at": 10}  # fmt: skip
    return made.inspections(
        12, step=[*range(8), 10, 20, 30, 40], phase=["training"] * 8 + ["evaluation answers"] * 4,
        detail=[json.dumps({"hits": 0.95})] * 8 + [json.dumps(asked | facts)] * 4,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({}, []),
        ({"hits": 0.1}, ["classes-renamed"]),
        ({"hits": 0.1, "renamed": 0.4}, ["no-better-than-guessing"]),
        ({"hits": 0.25, "renamed": 0.25, "top_answer": 1.0}, ["same-answer"]),
        ({"hits": 0.9, "renamed": 0.9, "top_label": 0.9, "top_answer": 1.0}, []),  # of a rare class
        ({"hits": 0.85, "renamed": 0.85, "top_label": 0.84}, []),
        ({"known": True}, ["evaluated-on-training-data"]),
        ({"answers": 10, "hits": 0.0}, []),
    ],
)
def test_what_evaluations_answer(facts: dict[str, object], found: list[str]) -> None:
    seen = made.window(steps=made.steps(made.falling(60)), inspections=evaluations(**facts))
    assert [one.kind for one in OddEvaluation().check(seen)] == found
    assert list(OddEvaluation().check(made.window())) == []


@pytest.mark.parametrize(
    ("makers", "found"), [([1] * 8, ["repeated-data"]), ([1] * 2 + [2] * 2 + [3] * 2 + [4] * 2, [])]
)
def test_folds_may_begin_with_the_same_seed(makers: list[int], found: list[str]) -> None:
    """Random numbers that repeat within one training are a mistake, in the next one they make it comparable."""
    rows = made.inspections(random_hash=[7, 8, 7, 8, 7, 8, 7, 8])
    seen = made.window(steps=made.steps(made.falling(8), optimizer=makers), inspections=rows)
    assert made.names_in(RepeatedData(), seen) == found


def stages(shapes: list[list[int]]) -> dict[str, object]:
    """Inspections of eight steps apart each, with batches of these shapes."""
    count = len(shapes)
    return made.inspections(
        count, step=[8 * place for place in range(count)], detail=[json.dumps({"shape": one}) for one in shapes]
    )


@pytest.mark.parametrize(
    ("shapes", "severity"),
    [
        ([[4]] * 15 + [[8]] * 15, Severity.INFO),
        ([[4]] * 30, Severity.ERROR),
        ([[4], [8]] * 15, Severity.ERROR),
    ],
)
def test_a_loss_that_rises_where_batches_take_another_shape_may_be_a_curriculum(
    shapes: list[list[int]], severity: Severity
) -> None:
    losses = np.concatenate([made.falling(120, start=1.0, end=0.01), made.falling(120, start=3.0, end=1.5)])
    seen = made.window(steps=made.steps(losses), inspections=stages(shapes))
    (found,) = Divergence().check(seen)
    assert found.severity == severity


@pytest.mark.parametrize(("at", "severity"), [(400, Severity.INFO), (200, Severity.WARNING), (None, Severity.WARNING)])
def test_overfitting_is_a_remark_where_kept_weights_are_loaded_in_the_end(at: int | None, severity: Severity) -> None:
    loads = json.dumps({"kind": "load_state_dict weights-restored", "seen": "", "times": 1, "calls": 1, "at": at or 0})
    rows = made.inspections(phase=["training"] * 7 + ["call"], detail=[None] * 7 + [loads if at else "{}"])
    values = [*np.linspace(2.3, 0.5, 8), *np.linspace(0.52, 1.0, 12)]
    metrics = made.metrics("val/loss", values, every=20)
    seen = made.window(steps=made.steps(made.falling(400, end=0.01)), metrics=metrics, inspections=rows)
    (found,) = Overfitting().check(seen)
    assert found.severity == severity


@pytest.mark.parametrize(("last", "severity"), [(np.nan, Severity.ERROR), (0.2, Severity.INFO)])
def test_the_logarithm_of_a_softmax_is_a_fault_once_the_loss_is_none(last: float, severity: Severity) -> None:
    rows = made.inspections(remark="log-of-shares", detail=json.dumps({"seen": "the logarithm of softmax"}))
    seen = made.window(steps=made.steps([*made.falling(50), last]), inspections=rows)
    (found,) = WrongLoss().check(seen)
    assert found.severity == severity


@pytest.mark.parametrize(("is_weighed", "severity"), [(True, Severity.INFO), (False, Severity.WARNING)])
def test_a_rare_class_may_be_weighed_by_the_loss(is_weighed: bool, severity: Severity) -> None:
    detail = {"is_alone": True, **({"weighed": True} if is_weighed else {})}
    rows = made.inspections(top_class_share=0.96, detail=json.dumps(detail))
    seen = made.window(steps=made.steps(made.falling(50, end=1.0)), inspections=rows)
    assert [one.severity for one in OddBatch().check(seen) if one.kind == "one-class-dominates"] == [severity]
