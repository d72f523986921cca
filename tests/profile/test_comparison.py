"""Comparing runs: intervals that hold what they promise, words, settings, the gate."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import RunBuilder

from stethos.profile.comparison import Pair, compare, compare_pair
from stethos.profile.measure import ComparedTrouble, Measures
from stethos.profile.part import TrainingSeries
from stethos.profile.quantity import Quantity
from stethos.profile.resample import Interval, block_length, log_ratio_of_medians, mean_interval
from stethos.profile.setting import Difference, differences_of, read_settings
from stethos.store.frame import Array
from stethos.store.run import open_run

ROUNDS = np.arange(1.0, 41.0)


def measured(name: str = "a", *, loss: Array | None = None, round_ms: float = 100.0, **more: Any) -> Measures:
    wobble = 1 + 0.02 * np.sin(ROUNDS * 1.7)
    facts: dict[str, Any] = {
        "settings": {"lr": 0.1, "seed": 0}, "unit": "round", "at": ROUNDS,
        "loss": 2 / ROUNDS if loss is None else loss, "accuracy": 1 - 0.5 / ROUNDS, "round_ms": round_ms * wobble,
        "step_ms": np.array([]), "sent_bytes": np.full(len(ROUNDS), 4e6), "peak_bytes": {"tensors, peak": 1e9},
        **more,
    }  # fmt: skip
    return Measures(name, **facts)


def words(pair: Pair) -> dict[str, str]:
    return {one.name: pair.word_of(one) for one in pair.quantities if one.is_judged}


def test_a_run_is_equal_to_itself() -> None:
    pair = compare_pair(measured("a"), measured("b"))
    assert pair.verdict == "no difference shown" and pair.cause == "nothing that was recorded"
    assert set(words(pair).values()) == {"equal", "no difference shown"} and not pair.worse_than(0.0)


def test_the_setting_that_differs_is_named() -> None:
    pair = compare_pair(measured(), measured(loss=2.4 / ROUNDS, settings={"lr": 0.05, "seed": 0}))
    assert pair.cause == "lr: 0.1 -> 0.05" and words(pair)["final loss"] == "worse"
    assert [one.name for one in pair.worse_than(0.05)] == ["final loss"] and not pair.worse_than(0.3)


def test_a_flag_that_only_one_run_was_given_is_told_in_words() -> None:
    pair = compare_pair(measured(), measured(settings={"lr": 0.1, "seed": 0, "--compile": ""}))
    assert pair.cause == "--compile: not given -> given"


def test_an_argument_that_is_a_hyperparameter_too_is_told_once() -> None:
    given = {"lr": 3.0, "seed": 0, "--lr": "3", "batch_size": 64, "--batch-size": "64"}
    base = {"lr": 0.1, "seed": 0, "batch_size": 32}
    pair = compare_pair(measured(settings=base), measured(settings=given))
    assert pair.cause == "lr: 0.1 -> 3.0, batch_size: 32 -> 64"


def test_a_quantity_that_is_many_times_as_high_is_said_so() -> None:
    pair = compare_pair(measured(), measured(loss=2468 / ROUNDS, settings={"lr": 3.0, "seed": 0}))
    assert pair.verdict.startswith("final loss 1,234 times as high (worse)")


def test_runs_with_equal_numbers_of_which_one_failed_are_not_called_alike() -> None:
    failed = (ComparedTrouble("SYS013", "rank 2 ended badly: exit status 3"),)
    pair = compare_pair(measured(), measured(troubles=failed))
    assert pair.verdict == "no difference shown; more was found in the second"
    assert pair.new_findings == ("rank 2 ended badly: exit status 3",)


def test_settings_whose_runs_all_end_in_nan_are_worse() -> None:
    good = [measured(f"a{seed}", settings={"lr": 0.1, "seed": seed}) for seed in range(3)]
    lost = [measured(f"b{seed}", settings={"lr": 9.0, "seed": seed}, is_lost=True) for seed in range(3)]
    (pair,) = compare([*good, *lost])
    assert words(pair)["final loss"] == "worse" and [one.name for one in pair.worse_than(1e9)] == ["final loss"]
    (pair,) = compare([*lost, *good])
    assert words(pair)["final loss"] == "better" and not pair.worse_than(0.0)
    some = [*good[:2], measured("a9", settings={"lr": 0.1, "seed": 9}, is_lost=True)]
    (pair,) = compare([*some, *lost])
    assert words(pair).get("final loss") != "worse" and "not finite in a9, b0, b1, b2" in pair.notes[1]


def test_another_seed_alone_is_chance() -> None:
    pair = compare_pair(measured(), measured(loss=2.4 / ROUNDS, settings={"lr": 0.1, "seed": 1}))
    assert pair.is_seed_only and pair.cause == "the seed only (seed: 0 -> 1)"
    assert words(pair)["final loss"] == "chance" and pair.verdict.startswith(
        "no difference shown; within chance: final loss"
    )


def test_a_setting_and_the_seed_together_cannot_be_told_apart() -> None:
    pair = compare_pair(measured(), measured(loss=2.4 / ROUNDS, settings={"lr": 0.05, "seed": 1}))
    assert not pair.is_seed_only and "cannot tell the setting from chance" in pair.notes[0]


def test_slower_rounds_fail_the_gate_and_faster_ones_pass() -> None:
    slower, faster = (compare_pair(measured(), measured(round_ms=ms)) for ms in (140.0, 70.0))
    assert words(slower)["round time"] == "worse" and words(faster)["round time"] == "better"
    assert [one.name for one in slower.worse_than(0.2)] == ["round time"] and not slower.worse_than(0.5)
    assert not faster.worse_than(0.0)


def test_lower_accuracy_is_worse() -> None:
    pair = compare_pair(measured(), measured(accuracy=0.8 * (1 - 0.5 / ROUNDS)))
    assert words(pair)["final accuracy"] == "worse" and [one.name for one in pair.worse_than(0.1)] == ["final accuracy"]


def test_few_rounds_are_too_few() -> None:
    few = {
        "at": ROUNDS[:4],
        "loss": 2 / ROUNDS[:4],
        "accuracy": np.full(4, math.nan),
        "sent_bytes": np.full(4, math.nan),
    }
    one, two = (measured(name, **few) for name in "ab")
    two = measured("b", **{**few, "loss": 9 / ROUNDS[:4]})
    assert words(compare_pair(one, two))["final loss"] == "too little to tell"


def test_runs_without_anything_in_common_say_so() -> None:
    empty = np.array([])
    nothing = {"at": empty, "loss": empty, "accuracy": empty, "round_ms": empty, "sent_bytes": empty, "peak_bytes": {}}
    pair = compare_pair(measured(), Measures("b", {}, "step", **{**nothing, "step_ms": empty}))
    assert pair.verdict == "too little was recorded to compare" and not pair.quantities


def test_one_number_each_needs_more_than_a_twentieth() -> None:
    for peak, word in ((1.03e9, "no difference shown"), (1.3e9, "worse"), (0.5e9, "better"), (1e9, "equal")):
        pair = compare_pair(measured(), measured(peak_bytes={"tensors, peak": peak}))
        assert words(pair)["memory of tensors, peak"] == word


def test_several_runs_of_two_settings_use_the_spread_between_runs() -> None:
    runs = [measured(f"{lr}-{seed}", loss=(2 + level + 0.1 * seed) / ROUNDS, settings={"lr": lr, "seed": seed})
            for lr, level in ((0.1, 0.0), (0.05, 1.0)) for seed in (0, 1, 2)]  # fmt: skip
    (pair,) = compare(runs)
    one = next(one for one in pair.quantities if one.name == "final loss")
    assert pair.cause == "lr: 0.1 -> 0.05" and one.word == "worse" and "3 and 3 runs" in pair.notes[0]
    logs = [np.log([(2 + level + 0.1 * seed) for seed in (0, 1, 2)]) for level in (0.0, 1.0)]
    assert one.change.value == pytest.approx(math.expm1(logs[1].mean() - logs[0].mean()))
    wide = [measured(f"{lr}-{seed}", loss=(2 + level + 2.0 * seed) / ROUNDS, settings={"lr": lr, "seed": seed})
            for lr, level in ((0.1, 0.0), (0.05, 1.0)) for seed in (0, 1, 2)]  # fmt: skip
    assert compare(wide)[0].verdict == "no difference shown"


def test_findings_of_one_run_alone_are_listed() -> None:
    both = [(ComparedTrouble("leak", f"memory grows by {rate} MB a minute"),) for rate in (5, 7)]
    first = measured(troubles=(ComparedTrouble("plateau", "plateau: x"), *both[0]))
    second = measured(troubles=(ComparedTrouble("slow-link c1", "client c1's link: y"), *both[1]))
    pair = compare_pair(first, second)
    assert pair.new_findings == ("client c1's link: y",) and pair.gone_findings == ("plateau: x",)
    groups = [measured(settings={"lr": lr, "seed": seed}, troubles=one.troubles[: 2 - seed])
              for lr, one in ((0.1, first), (0.05, second)) for seed in (0, 1)]  # fmt: skip
    assert compare(groups)[0].new_findings == ("client c1's link: y",)


def test_a_peak_that_is_a_little_lower_is_no_difference() -> None:
    for change, word in (
        (-0.03, "no difference shown"),
        (0.03, "no difference shown"),
        (-0.2, "better"),
        (0.2, "worse"),
    ):
        pair = compare_pair(measured(), measured(peak_bytes={"tensors, peak": 1e9 * (1 + change)}))
        assert words(pair)["memory of tensors, peak"] == word


def test_settings_are_compared_by_value() -> None:
    found = differences_of([{"a": 1, "b": [1, 2], "host": "x"}, {"a": 1, "b": [1, 3], "c": None, "host": "y"}])
    assert [(one.name, one.values) for one in found] == [("b", ([1, 2], [1, 3])), ("host", ("x", "y"))]
    assert Difference("data.seed", (0, 1)).is_seed and not Difference("seedling", (0, 1)).is_seed


def test_an_option_that_the_program_has_as_a_setting_is_one_setting(tmp_path: Path) -> None:
    command = shlex.split("python train.py --lr 3e-1 --batch-size=64 --epochs 9")
    config = {"lr": 0.3, "batch_size": 64, "epochs": 10}
    with RunBuilder(tmp_path / "a") as run:
        run.process(is_alive=False, command=command, config=config).finish()
    with open_run(tmp_path / "a") as opened:
        settings = read_settings(opened)
    assert {name for name in settings if name[:1] == "-"} == {"--epochs"}  # whose value is another one


@pytest.mark.parametrize(
    "command",
    ["python -P -X dev -m lab.demo --dir runs --lr 0.1", "/usr/bin/python3.11 -u lab.demo --name a --lr=0.1"],
)
def test_options_of_the_interpreter_are_no_settings(tmp_path: Path, command: str) -> None:
    with RunBuilder(tmp_path / "a") as run:
        run.process(is_alive=False, command=shlex.split(command), config={}).finish()
    with open_run(tmp_path / "a") as opened:
        settings = read_settings(opened)
    assert {name: settings[name] for name in settings if name[:1] == "-" or name == "command"} == {
        "--lr": "0.1", "command": "lab.demo",
    }  # fmt: skip


def test_intervals_cover_the_truth_also_where_neighbours_resemble_each_other() -> None:
    """Of intervals of 95 %, at least 85 % hold it in short correlated series; drawing rounds one by one, far fewer."""
    chance = np.random.default_rng(5)
    hits = naive = 0
    for _ in range(100):
        noise = chance.normal(size=120)
        series = np.empty(120)
        series[0] = noise[0]
        for place in range(1, 120):
            series[place] = 0.7 * series[place - 1] + noise[place]
        found = mean_interval(series)
        assert found.low is not None and found.high is not None
        hits += found.low <= 0 <= found.high
        naive += abs(series.mean()) <= 1.96 * series.std() / math.sqrt(len(series))
    assert hits >= 83 and hits > naive + 10


def test_the_interval_of_a_ratio_of_medians_is_that_of_a_plain_bootstrap_without_correlation() -> None:
    chance = np.random.default_rng(7)
    one, two = chance.lognormal(0, 0.2, 200), chance.lognormal(0.3, 0.2, 200)
    found = log_ratio_of_medians(one, two)
    drawn = [math.log(np.median(chance.choice(two, 200)) / np.median(chance.choice(one, 200))) for _ in range(2000)]
    assert found.value == pytest.approx(math.log(np.median(two) / np.median(one)))
    assert found.low == pytest.approx(float(np.quantile(drawn, 0.025)), abs=0.02)
    assert found.high == pytest.approx(float(np.quantile(drawn, 0.975)), abs=0.02)


def test_the_same_series_give_the_same_interval_and_draw_from_nobody() -> None:
    values = np.random.default_rng(1).normal(size=300)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    assert mean_interval(values) == mean_interval(values)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]
    assert block_length(values) <= 3 < block_length(np.cumsum(values))


def test_a_quantity_without_a_number_is_no_verdict() -> None:
    assert Quantity("x", "", None, None, Interval(math.nan)).word == "too little to tell"


def test_other_work_on_the_machine_widens_times_but_no_losses() -> None:
    def pair(others_share: float, round_ms: float) -> Pair:
        worse = {"settings": {"lr": 0.05, "seed": 0}, "loss": 2.4 / ROUNDS, "others_share": others_share}
        return compare_pair(measured(), measured("b", round_ms=round_ms, **worse))

    assert words(pair(0.0, 130.0))["round time"] == words(pair(0.1, 130.0))["round time"] == "worse"
    busy = pair(0.5, 130.0)
    assert words(busy) | {"round time": "no difference shown", "final loss": "worse"} == words(busy)
    assert "other processes kept 50% of the machine busy" in busy.notes[-1]
    assert words(pair(0.5, 230.0))["round time"] == "worse"  # more than half the machine can explain
    assert words(pair(1.0, 1000.0))["round time"] == "no difference shown"


def test_what_another_seed_changed_is_chance_but_fails_a_gate() -> None:
    pair = compare_pair(measured(), measured(round_ms=140.0, settings={"lr": 0.1, "seed": 1}))
    assert words(pair)["round time"] == "chance" and pair.worse_than(0.05)


# Runs that are more than one training ------------------------------------------------------------------


def of_parts(name: str, **losses: Array) -> Measures:
    """A run with several federations."""
    nothing = np.full(len(ROUNDS), math.nan)
    parts = {
        part: TrainingSeries(ROUNDS, loss, nothing, np.full(len(ROUNDS), 50.0), nothing)
        for part, loss in losses.items()
    }
    return measured(name, parts=parts)


def test_federations_are_compared_by_name_and_not_averaged() -> None:
    worse, better = 2.6 / ROUNDS, 1.6 / ROUNDS
    pair = compare_pair(of_parts("a", x=2 / ROUNDS, y=2 / ROUNDS), of_parts("b", x=worse, y=better))
    assert words(pair)["final loss of x"] == "worse" and words(pair)["final loss of y"] == "better"
    assert "final loss" not in words(pair) and words(pair)["memory of tensors, peak"] == "equal"
    assert [one.name for one in pair.worse_than(0.1)] == ["final loss of x"]


def test_what_only_one_run_has_is_not_compared_and_said() -> None:
    pair = compare_pair(of_parts("a", x=2 / ROUNDS, y=2 / ROUNDS), of_parts("b", x=2 / ROUNDS, z=3 / ROUNDS))
    assert {one.part for one in pair.quantities} == {"", "x"}
    assert pair.notes[:2] == (
        "federations of a alone, which are not compared: y", "federations of b alone, which are not compared: z"
    )  # fmt: skip


def test_a_single_federation_is_compared_whatever_its_name() -> None:
    pair = compare_pair(of_parts("a", x=2 / ROUNDS), of_parts("b", y=2 / ROUNDS))
    assert "final loss" in words(pair) and not pair.notes


def test_several_runs_of_several_federations_use_the_spread_of_each() -> None:
    def runs(name: str, lr: float, x: float, y: float) -> list[Measures]:
        made = [{"x": (x + 0.01 * seed) / ROUNDS, "y": (y + 0.01 * seed) / ROUNDS} for seed in range(3)]
        return [
            replace(of_parts(f"{name}{seed}", **one), settings={"lr": lr, "seed": seed})
            for seed, one in enumerate(made)
        ]

    (pair,) = compare([*runs("a", 0.1, 2, 2), *runs("b", 0.2, 3, 2)])
    assert words(pair)["final loss of x"] == "worse" and words(pair)["final loss of y"] == "no difference shown"
