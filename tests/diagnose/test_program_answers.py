"""What evaluations and updates tell: answers far below the training, weights moved the wrong way or not at all."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stethos.diagnose.program.odd_batch import OddBatch
from stethos.diagnose.program.odd_evaluation import OddEvaluation
from stethos.diagnose.program.odd_optimizer import OddOptimizer
from stethos.diagnose.program.unoptimized_parameters import UnoptimizedParameters
from tests import training_rows as made


@pytest.mark.parametrize(("hits", "found"), [(0.95, []), (0.5, ["far-below-training"]), (0.8, [])])
def test_evaluations_far_below_the_training(hits: float, found: list[str]) -> None:
    training, evaluation = json.dumps({"hits": 0.95}), {
        "answers": 200, "hits": hits, "top_answer": 0.3, "top_label": 0.25, "renamed": hits,
        "known": False, "classes": 4,
    }  # fmt: skip
    rows = made.inspections(
        12, step=list(range(12)), phase=["training"] * 8 + ["evaluation answers"] * 4,
        detail=[training] * 8 + [json.dumps(evaluation)] * 4,
    )  # fmt: skip
    seen = made.window(steps=made.steps(np.geomspace(1.4, 0.05, 100)), inspections=rows)
    assert [one.kind for one in OddEvaluation().check(seen)] == found


@pytest.mark.parametrize(
    ("missed", "late", "found"), [(1.2, 0.1, ["no-better-than-the-mean"]), (0.3, 0.1, []), (1.2, 0.9, [])]
)
def test_evaluations_no_better_than_the_mean_of_targets(missed: float, late: float, found: list[str]) -> None:
    """Where the training has learned little, too, it is the training that is to be looked at."""
    rows = made.inspections(
        12, step=list(range(12)), phase=["training"] * 8 + ["evaluation answers"] * 4, function="MseLoss",
        detail=[json.dumps({"prior": 1.0})] * 8 + [json.dumps({"numbers": 200, "missed": missed})] * 4,
    )  # fmt: skip
    seen = made.window(steps=made.steps(np.geomspace(1.0, late, 100)), inspections=rows)
    assert [one.kind for one in OddEvaluation().check(seen)] == found


@pytest.mark.parametrize(
    ("details", "last", "found"),
    [
        ([{}] * 3 + [{"thawed": 2}] * 5, 40, ["unfrozen-not-optimized"]),
        ([{}] * 7 + [{"thawed": 2}], 40, ["unfrozen-not-optimized"]),
        ([{}] * 7 + [{"thawed": 2}], 95, []),
        ([{}] * 3 + [{"thawed": 2}] + [{}] * 4, 40, []),
        ([{}] * 8, 40, []),
    ],
)
def test_parameters_that_are_unfrozen_and_in_no_optimizer(
    details: list[dict[str, int]], last: int, found: list[str]
) -> None:
    """A look may fall between the unfreezing and the first step of a new optimizer, shortly before the end."""
    rows = made.inspections(
        step=[*range(7), last], unoptimized=[one.get("thawed", 0) for one in details],
        detail=[json.dumps(one) for one in details],
    )  # fmt: skip
    seen = made.window(steps=made.steps(np.linspace(1.0, 0.5, 100)), inspections=rows)
    assert [one.kind for one in UnoptimizedParameters().check(seen)] == found


@pytest.mark.parametrize(("slope", "first", "found"), [(1.0, 1.0, ["steps-uphill"]), (-1.0, 1.0, []), (1.0, -1.0, [])])
def test_updates_by_hand_that_go_uphill(slope: float, first: float, found: list[str]) -> None:
    """An objective below 0, such as a log-likelihood, is to rise."""
    rows = made.inspections(detail=json.dumps({"slope": slope, "is_alone": True}))
    seen = made.window(steps=made.steps(np.linspace(first, first + 1, 100)), inspections=rows)
    assert [one.kind for one in OddOptimizer().check(seen)] == found


@pytest.mark.parametrize(
    ("label", "share", "outputs", "found"),
    [(0, 0.6, 3, ["class-left-out"]), (255, 0.6, 3, []), (0, 0.05, 3, [])],
)
def test_a_class_of_pictures_that_the_loss_leaves_out(label: int, share: float, outputs: int, found: list[str]) -> None:
    detail = json.dumps({"left_out": label, "ignored": share, "labels": 512})
    rows = made.inspections(outputs=outputs, detail=detail)
    seen = made.window(steps=made.steps(np.linspace(1.0, 0.5, 100)), inspections=rows)
    assert [one.kind for one in OddBatch().check(seen)] == found
