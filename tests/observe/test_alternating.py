"""The benchmark that decides what recording costs a step: its sums, and the same process on the CPU."""

from __future__ import annotations

import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.alternate_cost import Turn, alternated, cost_of, turns_of
from benchmarks.gpu import Case, steps_grid

STEPS = 25
CASE = Case("cnn", 16, 1.01, 60.0)


def made(plain: float, sample_ms: float, *, every: int = 20, seed: int = 0) -> list[Turn]:
    """Turns of a training whose steps of 50 ms drift by a third, vary by 5 %, and are at times three times as long."""
    chance = random.Random(seed)

    def step(level: float) -> float:
        return 50 * level * chance.gauss(1, 0.05) * (3 if chance.random() < 0.02 else 1)

    turns, number = [], 0
    for turn in range(40):
        drift = 1 + turn / 120
        flags = [(number + at) % every == 0 for at in range(STEPS)]
        number += STEPS
        turns.append(Turn(
            [step(drift) for _ in range(STEPS)], [step(drift * plain) + sample_ms * flag for flag in flags], flags,
        ))  # fmt: skip
    return turns


@pytest.mark.parametrize(("plain", "sample_ms", "whole"), [(1.0, 0.0, 1.0), (1.002, 5.0, 1.0063), (1.05, 40.0, 1.087)])
def test_costs_are_found_in_steps_that_vary_by_more(plain: float, sample_ms: float, whole: float) -> None:
    found = [cost_of(made(plain, sample_ms, seed=seed)) for seed in range(5)]
    for cost in found:
        assert cost.observed.low <= cost.observed.value <= cost.observed.high
        assert cost.plain.high - cost.plain.low < 0.02  # of steps that vary by 5 %: enough to tell 1 % from 2 %
        assert cost.sampled_share == pytest.approx(0.05, abs=0.01)
    assert sum(cost.observed.low <= whole <= cost.observed.high for cost in found) >= 4
    assert sum(cost.plain.low <= plain <= cost.plain.high for cost in found) >= 4


def test_a_cost_beyond_the_target_is_not_called_reached() -> None:
    turns = [asdict(turn) for turn in made(1.05, 40.0)]
    counts = {"gradient_steps": 9, "observed_steps": 10, "own_share": 0.01}
    one = {"turns": turns, "steps": STEPS, "parameters": 302e6, **counts}
    grid = str(steps_grid({CASE: one}, has_same_weights=False))
    assert "|      no |" in grid and "NOT THE SAME" in grid


def test_where_every_step_has_a_sample_there_is_no_plain_one_to_compare_with() -> None:
    turn = Turn([1.0, 1.0], [2.0, 2.0], [True, True])
    cost = cost_of([turn, turn])
    assert cost.plain.value == 2.0 and cost.observed.value == 2.0


def test_in_turns_bare_and_observed_the_training_is_the_same(tmp_path: Path) -> None:
    """The callbacks come and go 4 times: each observed step is recorded, no other one is, no weight differs."""
    job: dict[str, Any] = {
        "device": "cpu", "workload": "mlp", "preset": "standard", "warmup": [20, 20], "pause_s": 0.1, "turns": 4,
        "steps": 12, "settle": 4, "limit_s": 60.0,
    }  # fmt: skip
    found = alternated(tmp_path / "observed", job)  # it raises if steps and rows do not match
    assert len(found["turns"]) == 4 and all(len(turn["observed_ms"]) == found["steps"] for turn in found["turns"])
    assert all(ms > 0 for turn in found["turns"] for kind in ("bare", "observed") for ms in turn[f"{kind}_ms"])
    bare = alternated(tmp_path / "bare", {**job, "preset": ""})
    assert bare["digest"] == found["digest"] and not any(any(turn["is_sampled"]) for turn in bare["turns"])
    assert "302 M" not in str(steps_grid({CASE: found}, has_same_weights=True))
    assert cost_of(turns_of(found)).bare_ms > 0
