"""Numbers that go wrong: a true case, a near miss and an empty case each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import training_rows as made

from stethos.diagnose.detector import CannotTell
from stethos.diagnose.detectors import DETECTORS
from stethos.diagnose.engine import examine
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.numbers.dead_units import DeadUnits
from stethos.diagnose.numbers.exploding_gradients import ExplodingGradients
from stethos.diagnose.numbers.frozen_layers import FrozenLayers
from stethos.diagnose.numbers.non_finite_gradients import NonFiniteGradients
from stethos.diagnose.numbers.non_finite_loss import NonFiniteLoss
from stethos.diagnose.numbers.non_finite_weights import NonFiniteWeights
from stethos.diagnose.numbers.poor_initialisation import PoorInitialisation
from stethos.diagnose.numbers.saturated_units import SaturatedUnits
from stethos.diagnose.numbers.series_anomaly import SeriesAnomaly
from stethos.diagnose.numbers.update_to_weight_ratio import UpdateToWeightRatio
from stethos.diagnose.numbers.vanishing_gradients import VanishingGradients
from stethos.diagnose.numbers.weight_explosion import WeightExplosion
from stethos.diagnose.window import Window
from stethos.store.frame import Frame, is_null

OURS = [detector for code, detector in DETECTORS.items() if code[:3] in ("NUM", "CON")]
STUCK = 2.3 + made.noise(300, 0.02)


def found_in(detector: Any, seen: Window) -> list[Finding]:
    """What it finds; nothing where it cannot tell."""
    try:
        return list(detector.check(seen))
    except CannotTell:
        return []


@pytest.mark.parametrize("detector", OURS, ids=lambda one: one.code)
class TestEachOfThem:
    def test_finds_nothing_in_an_empty_window(self, detector: Any) -> None:
        assert list(detector().check(Window())) == []
        assert list(detector().check(made.window(steps={}, layers={}, metrics={}, rounds={}))) == []

    def test_finds_nothing_in_one_step(self, detector: Any) -> None:
        tables = {"steps": made.steps([2.3]), "layers": made.layers(1, gradient__a_weight={}, weight__a_weight={})}
        assert found_in(detector(), made.window(**tables)) == []

    def test_survives_nan_everywhere(self, detector: Any) -> None:
        gone = dict.fromkeys(
            ("norm", "mean", "std", "min", "max", "zero_share", "nan", "inf", "drift", "size"), math.nan
        )
        tables = {
            "steps": made.steps([math.nan] * 200, lr=math.nan, grad_norm=math.nan),
            "layers": made.layers(20, gradient__a_weight=gone, weight__a_weight=gone, activation__b=gone),
            "metrics": made.metrics("val_loss", [math.nan] * 100),
        }
        assert all(0 <= one.confidence <= 1 for one in found_in(detector(), made.window(**tables)))

    def test_survives_missing_columns(self, detector: Any) -> None:
        few = made.window(
            steps={"step": [0, 1, 2], "loss": [1.0, 2.0, None]}, layers={"layer": ["a"], "kind": ["weight"]}
        )
        found_in(detector(), few)

    def test_finds_nothing_in_a_healthy_training(self, detector: Any) -> None:
        count = 300
        healthy = made.window(
            steps=made.steps(made.falling(count), grad_norm=list(0.5 + np.abs(made.noise(count, 0.1)))),
            layers=made.layers(
                30,
                gradient__a_weight={"norm": list(0.3 + np.abs(made.noise(30, 0.05)))},
                gradient__a_bias={"norm": 0.1, "size": 64, "zero_share": 0.1},
                gradient__b_weight={"norm": 0.3},
                weight__a_weight={"norm": 4.6, "std": 0.072, "drift": list(np.linspace(0, 1.5, 30))},
                weight__b_weight={"norm": 4.6, "std": 0.072, "drift": list(np.linspace(0, 1.5, 30))},
                activation__1={"zero_share": 0.5, "min": 0.0, "max": 3.0, "mean": 0.4, "std": 0.6},
                activation__2={},
            ),
            metrics=made.metrics("val_loss", made.falling(20), every=15),
        )
        assert list(detector().check(healthy)) == []

    def test_its_page_has_every_part(self, detector: Any) -> None:
        parts = ("What it looks at:", "Why it matters:", "Not a fault when:", "Next step:")
        assert all(part in detector.__doc__ for part in parts)


def test_null_is_no_nan() -> None:
    frame = Frame({"loss": [1.0, None, math.nan]})
    assert is_null(frame["loss"]).tolist() == [False, True, False]
    assert Window({"steps": Frame({"loss": [math.nan]})}).has("steps", frozenset({"loss"}))
    assert not Window({"steps": Frame({"loss": [1.0, None]}).where(np.array([False, True]))}).has(
        "steps", frozenset({"loss"})
    )


# Non-finite ------------------------------------------------------------------------------------------


def broken_at(place: int, count: int = 40) -> list[float | None]:
    return [1.0] * place + [math.nan] * (count - place)


def test_a_nan_loss_with_finite_weights_is_the_origin() -> None:
    nans = {"nan": [0, 0, 4096, 4096]}
    seen = made.window(
        steps=made.steps(broken_at(20)),
        layers=made.layers(4, gradient__a_weight=nans, weight__a_weight={"nan": [0, 0, 0, 4096]}),
    )
    (finding,) = NonFiniteLoss().check(seen)
    assert (finding.subject.first, finding.subject.unit, finding.severity) == (20, "step", Severity.ERROR)
    assert [one.name for one in finding.consequences] == ["non-finite-gradients", "non-finite-weights"]
    assert made.names_in(NonFiniteGradients(), seen) == made.names_in(NonFiniteWeights(), seen) == []


def test_a_nan_gradient_under_a_finite_loss_is_the_origin_and_names_its_layer() -> None:
    seen = made.window(
        steps=made.steps(broken_at(21)),
        layers=made.layers(4, gradient__a_weight={}, gradient__b_weight={"nan": [0, 0, 3, 3]}, weight__b_weight={}),
    )
    (finding,) = NonFiniteGradients().check(seen)
    assert finding.subject.first == 20 and finding.subject.layers == ("b.weight",)
    assert [one.name for one in finding.consequences] == ["non-finite-loss"]
    assert made.names_in(NonFiniteLoss(), seen) == []


def test_weights_that_were_nan_as_the_step_began_are_the_origin() -> None:
    seen = made.window(
        steps=made.steps(broken_at(20)),
        layers=made.layers(4, weight__a_weight={"inf": [0, 0, 1, 1]}, gradient__a_weight={}),
    )
    (finding,) = NonFiniteWeights().check(seen)
    assert finding.subject.first == 20 and "a.weight" in finding.title


def test_a_missing_loss_is_no_nan() -> None:
    assert made.names_in(NonFiniteLoss(), made.window(steps=made.steps([1.0, None, 1.0, None]))) == []


def test_the_client_is_named_in_rounds() -> None:
    count = 40
    rows = made.steps(broken_at(20, count), client=["c1"] * 20 + ["c7"] * 20, round=[1.0] * 20 + [2.0] * 20)
    (finding,) = NonFiniteLoss().check(made.window(steps=rows, rounds={"round": [1, 2]}))
    assert (finding.subject.clients, finding.subject.first, finding.subject.unit) == (("c7",), 2, "round")


def test_the_turn_is_named_in_a_loop_that_names_no_clients() -> None:
    rows = made.steps(broken_at(50, 80), optimizer=[1 + step // 8 for step in range(80)])
    (finding,) = NonFiniteLoss().check(made.window(steps=rows))
    assert finding.title == "the loss is NaN from step 50 on, in turn 7 of 10 (optimizer 7)"


def test_a_client_that_got_a_broken_model_is_not_blamed() -> None:
    rows = made.steps([1.0] * 10 + [math.nan] * 10, client=["c0"] * 10 + ["c1"] * 10, round=[3.0] * 10 + [4.0] * 10,
                      optimizer=[1] * 10 + [2] * 10)  # fmt: skip
    weights = made.layers(2, weight__a_weight={"nan": [0, 7]})
    weights["optimizer"] = [1, 2]
    (finding,) = NonFiniteWeights().check(made.window(steps=rows, layers=weights, rounds={"round": [3, 4]}))
    assert (finding.subject.clients, finding.subject.first) == ((), 4) and "global model" in finding.title


def test_a_nan_spreading_to_another_client_is_one_finding() -> None:
    first = made.steps(broken_at(5, 10), client="c7", round=1.0)
    second = made.steps([math.nan] * 10, client="c1", round=2.0, process="q")
    rows = {name: [*first[name], *second[name]] for name in first}
    (finding,) = NonFiniteLoss().check(made.window(steps=rows, rounds={"round": [1, 2]}))
    assert finding.subject.clients == ("c7",)


# Gradients -------------------------------------------------------------------------------------------


def test_gradients_that_jump_and_stay_explode() -> None:
    norms = [0.5] * 50 + [500.0] * 20
    (finding,) = ExplodingGradients().check(made.window(steps=made.steps([1.0] * 70, grad_norm=norms)))
    assert finding.subject.first == 50 and "clip_grad_norm_" in finding.next_step


def test_one_hard_batch_is_no_explosion() -> None:
    norms = [0.01] * 50 + [2.0] + [0.01] * 20
    assert made.names_in(ExplodingGradients(), made.window(steps=made.steps([1.0] * 71, grad_norm=norms))) == []


def test_gradients_that_grow_with_depth_explode() -> None:
    grown = {f"gradient__{name}_weight": {"norm": 10.0 ** (6 - 2 * place)} for place, name in enumerate("abcd")}
    seen = made.window(steps=made.steps(STUCK, grad_norm=1.0), layers=made.layers(3, **grown))
    assert made.names_in(ExplodingGradients(), seen) == ["exploding-gradients"]


def depth(*norms: float) -> dict[str, Any]:
    return {f"gradient__{name}_weight": {"norm": norm} for name, norm in zip("abcdefg", norms, strict=False)}


def test_gradients_that_do_not_reach_the_first_layers_vanish() -> None:
    seen = made.window(steps=made.steps(STUCK), layers=made.layers(5, **depth(1e-8, 1e-6, 1e-3, 1.0)))
    (finding,) = VanishingGradients().check(seen)
    assert finding.severity == Severity.WARNING and finding.subject.layers == ("a.weight", "b.weight")


def test_gradients_of_zero_do_not_vanish() -> None:
    seen = made.window(steps=made.steps(STUCK), layers=made.layers(5, **depth(0.0, 0.0, 1e-1, 1.0)))
    assert made.names_in(VanishingGradients(), seen) == []


def test_small_gradients_of_a_model_that_learns_are_only_mentioned() -> None:
    seen = made.window(steps=made.steps(made.falling()), layers=made.layers(5, **depth(1e-8, 1e-6, 1e-3, 1.0)))
    assert [one.severity for one in VanishingGradients().check(seen)] == [Severity.INFO]


def test_layers_that_move_in_spite_of_small_gradients_are_only_mentioned() -> None:
    """A branch of the policy beside one of values, with Adam."""
    drift = [0.0, 0.01, 0.02, 0.03, 0.04]
    rows = made.layers(5, **depth(1e-8, 1e-6, 1e-3, 1.0), weight__a_weight={"drift": drift},
                       weight__b_weight={"drift": drift})  # fmt: skip
    seen = made.window(steps=made.steps(STUCK), layers=rows)
    assert [one.severity for one in VanishingGradients().check(seen)] == [Severity.INFO]


def test_a_layer_without_gradient_is_mentioned_and_one_with_zero_is_a_warning() -> None:
    def seen(first: Any) -> Window:
        rows = made.layers(
            5, gradient__a_weight={"norm": first}, gradient__b_weight={}, weight__a_weight={"drift": 0.0}
        )
        return made.window(steps=made.steps(made.falling()), layers=rows)  # type: ignore[no-any-return]

    assert [one.severity for one in FrozenLayers().check(seen(None))] == [Severity.INFO]
    assert [one.severity for one in FrozenLayers().check(seen(0.0))] == [Severity.WARNING]
    assert made.names_in(FrozenLayers(), seen(1e-9)) == []


# Weights ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("last", "found"), [(640.0, ["weight-explosion"]), (40.0, [])])
def test_weights_that_grow_a_hundredfold_explode(last: float, found: list[str]) -> None:
    rows = made.layers(20, weight__a_weight={"norm": list(np.linspace(6.4, last, 20))})
    assert made.names_in(WeightExplosion(), made.window(steps=made.steps([1.0] * 200), layers=rows)) == found


@pytest.mark.parametrize(("move", "found"), [(3.0, ["update-to-weight-ratio"]), (0.05, [])])
def test_a_layer_that_moves_by_a_third_of_its_norm_per_step(move: float, found: list[str]) -> None:
    drift = [move * sample for sample in range(10)]
    rows = made.layers(10, every=1, weight__a_weight={"norm": 10.0, "drift": drift},
                       weight__b_weight={"norm": 10.0, "drift": [0.05 * sample for sample in range(10)]})  # fmt: skip
    assert made.names_in(UpdateToWeightRatio(), made.window(steps=made.steps(STUCK), layers=rows)) == found


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ({"std": 3.0}, True),
        ({"std": 1e-4}, True),
        ({"std": 0.0, "mean": 0.05}, True),
        ({"std": 0.072}, False),
        ({"std": 0.18}, False),  # Kaiming
        ({"std": 0.0, "mean": 1.0}, False),  # the scale of a norm layer
    ],
)
def test_initialisations(start: dict[str, float], found: bool) -> None:
    rows = made.layers(3, weight__a_weight=start, weight__b_weight=start)
    assert bool(made.names_in(PoorInitialisation(), made.window(steps=made.steps(STUCK), layers=rows))) == found


def test_what_is_no_weight_may_begin_small() -> None:
    """The mean of a variational distribution beside its covariance; a token beside weights."""
    small, usual = {"std": 1e-3, "size": 32}, {"std": 0.12, "size": 1024}
    for names in (("q_mean", "q_cover"), ("token", "a_weight")):
        rows = made.layers(3, **{f"weight__{names[0]}": small, f"weight__{names[1]}": usual})
        assert made.names_in(PoorInitialisation(), made.window(steps=made.steps(STUCK), layers=rows)) == []


@pytest.mark.parametrize(("names", "found"), [(["u"], []), (["u", "v"], ["poor-initialisation"])])
def test_one_tensor_of_no_module_may_begin_as_it_likes(names: list[str], found: list[str]) -> None:
    """A table of factors is looked for, not a layer; two of them may well be the layers of a model by hand."""
    falling = [9.0, 4.0, 2.0, *made.falling(60, 1.0, 0.05)]
    rows = made.layers(3, **{f"weight__{name}": {"std": 3.0, "size": 420} for name in names})
    assert made.names_in(PoorInitialisation(), made.window(steps=made.steps(falling), layers=rows)) == found


@pytest.mark.parametrize(("size", "severity"), [(420, Severity.INFO), (4096, Severity.WARNING)])
def test_few_numbers_may_be_standard_normal_with_another_deviation(size: int, severity: Severity) -> None:
    falling = [9.0, 4.0, 2.0, *made.falling(60, 1.0, 0.05)]
    start = {"std": 0.88 if size < 1000 else 1.3, "size": size}
    rows = made.layers(3, weight__u=start, weight__v=start)
    (found,) = PoorInitialisation().check(made.window(steps=made.steps(falling), layers=rows))
    assert found.severity == severity


def test_beside_gradients_that_exploded_nothing_has_vanished() -> None:
    exploded = np.where(np.arange(30) < 10, 1.0, 1e12)
    rows = made.layers(30, gradient__a_weight={"norm": exploded}, gradient__b_weight={"norm": 1.0})
    assert made.names_in(VanishingGradients(), made.window(steps=made.steps(STUCK), layers=rows)) == []


@pytest.mark.parametrize(("first", "found"), [("embedding", []), ("0", []), ("0 std 2", ["poor-initialisation"])])
def test_an_embedding_may_begin_large(first: str, found: list[str]) -> None:
    name, _, std = first.partition(" std ")
    weights = {f"weight__{name}_weight": {"std": float(std or 1.0)}, "weight__b_weight": {"std": 0.07}}
    seen = made.window(steps=made.steps(STUCK), layers=made.layers(3, **weights))
    assert made.names_in(PoorInitialisation(), seen) == found


@pytest.mark.parametrize(
    ("gradient", "found"),
    [
        ({"zero_share": 0.9, "std": 1 / 64}, []),
        ({"std": 1 / 32}, []),  # a quarter of the elements is stored
        ({"zero_share": 0.1, "std": 1 / 64}, ["poor-initialisation"]),
    ],
)
def test_tables_of_which_a_batch_reaches_few_rows_are_embeddings(gradient: dict[str, float], found: list[str]) -> None:
    """Factors of users and of items; numbers of a sparse gradient are those of the rows it has."""
    tables = {f"{kind}__{name}": numbers for name in ("user_weight", "item_weight")
              for kind, numbers in (("weight", {"std": 1.0}), ("gradient", gradient))}  # fmt: skip
    seen = made.window(steps=made.steps(STUCK), layers=made.layers(3, **tables))
    assert made.names_in(PoorInitialisation(), seen) == found


# Activations -----------------------------------------------------------------------------------------


def test_outputs_of_zero_are_dead() -> None:
    rows = made.layers(10, activation__1={"zero_share": [0.5] * 4 + [1.0] * 6}, activation__2={})
    (finding,) = DeadUnits().check(made.window(steps=made.steps(STUCK), layers=rows))
    assert finding.subject.first == 40 and finding.subject.layers == ("1",)


def test_a_sparse_layer_is_not_dead() -> None:
    rows = made.layers(10, activation__1={"zero_share": 0.9}, activation__2={})
    assert made.names_in(DeadUnits(), made.window(steps=made.steps(STUCK), layers=rows)) == []


def test_biases_without_gradient_tell_of_dead_units() -> None:
    rows = made.layers(
        10, gradient__0_bias={"norm": 0.0, "zero_share": 1.0, "size": 64},
        gradient__2_weight={"norm": 0.0, "size": 640}, gradient__2_bias={"norm": 0.1, "size": 10},
    )  # fmt: skip
    assert made.names_in(DeadUnits(), made.window(steps=made.steps(STUCK), layers=rows)) == ["dead-units"]


def test_a_branch_that_is_switched_off_is_not_dead_but_frozen() -> None:
    off = {"norm": 0.0, "zero_share": 1.0, "size": 64}
    rows = made.layers(10, gradient__main_bias={"norm": 0.1}, gradient__side_bias=off, gradient__side_weight=off)
    seen = made.window(steps=made.steps(STUCK), layers=rows)
    assert made.names_in(DeadUnits(), seen) == [] and made.names_in(FrozenLayers(), seen) == ["frozen-layers"]


@pytest.mark.parametrize(("std", "found"), [(0.99, ["saturated-units"]), (0.7, [])])
def test_tanh_at_its_ends_is_saturated(std: float, found: list[str]) -> None:
    rows = made.layers(10, activation__1={"std": list(std + made.noise(10, 1e-3)), "mean": 0.0}, activation__2={})
    assert made.names_in(SaturatedUnits(), made.window(steps=made.steps(STUCK), layers=rows)) == found


def test_a_sigmoid_that_answers_exactly_0_or_1_is_saturated() -> None:
    ends = {"min": 0.0, "max": 1.0, "mean": 0.5, "std": list(0.495 + made.noise(10, 1e-3))}
    rows = made.layers(10, activation__1=ends, activation__2={})
    (finding,) = SaturatedUnits().check(made.window(steps=made.steps(STUCK), layers=rows))
    assert finding.subject.first == 0


def test_a_sure_answer_is_not_saturated() -> None:
    rows = made.layers(10, activation__1={"std": list(0.99 + made.noise(10, 1e-3)), "mean": 0.0})
    assert made.names_in(SaturatedUnits(), made.window(steps=made.steps(STUCK), layers=rows)) == []


# Series ----------------------------------------------------------------------------------------------


def kinds(loss: Any) -> list[str]:
    return [one.kind for one in SeriesAnomaly().check(made.window(steps=made.steps(loss)))]


def test_a_loss_far_above_the_first_is_a_spike() -> None:
    loss = made.falling(300)
    loss[200] = 50.0
    assert kinds(loss) == ["spike"]


def test_a_hard_batch_below_the_first_loss_is_no_spike() -> None:
    loss = made.falling(300, end=0.01)
    loss[200] = 1.5
    assert kinds(loss) == []


def test_a_loss_that_jumps_up_and_stays_shifts_its_level() -> None:
    assert kinds(np.concatenate([made.falling(200), 1.8 + made.noise(200, 0.05)])) == ["level-shift"]


def test_a_loss_that_jumps_down_is_fine() -> None:
    assert kinds(np.concatenate([2.3 + made.noise(200, 0.05), 1.0 + made.noise(200, 0.05)])) == []


def test_a_loss_that_begins_to_vary_more_is_told() -> None:
    assert kinds(np.concatenate([1 + made.noise(200, 0.02), 1 + made.noise(200, 0.3)])) == ["variance-change"]


@pytest.mark.parametrize(("later", "found"), [(300.0, ["series-anomaly"]), (880.0, [])])
def test_a_metric_that_changes_its_level(later: float, found: list[str]) -> None:
    values = np.concatenate([900 + made.noise(150, 20), later + made.noise(150, 20)])
    seen = made.window(steps=made.steps(made.falling(300)), metrics=made.metrics("samples_per_s", values))
    assert made.names_in(SeriesAnomaly(), seen) == found


def test_a_metric_that_climbs_slowly_is_fine() -> None:
    values = np.linspace(0, 1, 300) + made.noise(300, 0.01)
    seen = made.window(steps=made.steps(made.falling(300)), metrics=made.metrics("accuracy", values))
    assert made.names_in(SeriesAnomaly(), seen) == []


def in_metric(name: str, values: Any) -> list[str]:
    seen = made.window(steps=made.steps(made.falling(300)), metrics=made.metrics(name, values))
    return [one.kind for one in SeriesAnomaly().check(seen)]


def test_a_metric_far_out_of_its_range_is_a_spike_unless_it_is_the_first() -> None:
    values = 900 + made.noise(300, 20)
    values[210] = 9.0e4
    assert in_metric("samples_per_s", values) == ["spike"]
    values[0], values[210] = values[210], values[0]
    assert in_metric("samples_per_s", values) == []
    assert in_metric("grad_norm", np.exp(made.noise(300, 1.0))) == []  # now and then a large one


def test_a_metric_that_begins_to_vary_is_told_and_one_that_begins_to_learn_is_not() -> None:
    assert in_metric("score", 1 + np.concatenate([made.noise(150, 0.01), made.noise(150, 0.3)])) == ["variance-change"]
    chance = 0.25 + made.noise(150, 0.005)
    assert in_metric("accuracy", np.concatenate([chance, np.linspace(0.25, 0.9, 150) + made.noise(150, 0.06)])) == []


@pytest.mark.parametrize(
    "values",
    [np.arange(300) // 100, np.where(np.arange(300) < 150, 0.1, 0.01), np.repeat([3, 1, 2], 100), np.arange(300) ** 2],
    ids=["epoch", "lr", "stage", "tokens"],
)
def test_settings_and_counters_are_no_anomalies(values: Any) -> None:
    assert in_metric("setting", values.astype(float)) == []


def test_a_model_that_begins_to_tell_batches_apart_varies_more_and_is_fine() -> None:
    assert (
        kinds(np.concatenate([1.386 + made.noise(80, 0.004), np.linspace(1.38, 0.9, 120) + made.noise(120, 0.04)]))
        == []
    )


# Together --------------------------------------------------------------------------------------------


def test_what_follows_is_folded_into_the_learning_rate() -> None:
    loss = [2.3, 80.0, 9000.0, *(20 + made.noise(300, 3))]
    rows = made.layers(30, weight__a_weight={"norm": [6.4, *[900.0] * 29]})
    seen = made.window(steps=made.steps(loss, lr=50.0), layers=rows)
    found = examine(seen, [detector() for detector in OURS])
    assert [one.name for one in found.findings if one.severity >= Severity.WARNING] == ["learning-rate-too-high"]
    assert {"divergence", "weight-explosion"} <= {one.name for one in found.findings[0].consequences}
    assert "lower lr from 50" in found.findings[0].next_step


@pytest.mark.parametrize(("length", "severity"), [(1, Severity.WARNING), (40, Severity.INFO)])
def test_a_jump_that_is_learned_down_again_is_a_remark(length: int, severity: Severity) -> None:
    """Other data, as the next stage of a curriculum, keep the loss up for a while; a broken batch does not."""
    loss = np.concatenate([2 * np.exp(-np.arange(300) / 30), 2 * np.exp(-np.arange(300) / 30)]) + 0.01
    loss[300:] = 0.01
    loss[300 : 300 + length] = np.linspace(8.0, 2.0, length) if length > 1 else 8.0
    (found,) = SeriesAnomaly().check(made.window(steps=made.steps(loss)))
    assert (found.kind, found.severity) == ("spike", severity)
