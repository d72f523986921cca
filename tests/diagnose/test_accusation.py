"""Whom numbers and rules accuse, and who is excused, on federations made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from stethos.diagnose.federated.accusation import Weighed, weigh
from stethos.diagnose.federated.cohort import Cohort, cohort_of
from stethos.diagnose.federated.data_sketch import Sketch, sketch_in
from stethos.diagnose.federated.inside import InsideMargins
from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.unlikeness import turn_unlikeness
from stethos.diagnose.federated.verdict import certain_on
from stethos.federate.batch_rows import BatchRows
from stethos.federate.data_sketch import DataSketch

NAMES = tuple(f"c{number}" for number in range(8))
Array = npt.NDArray[np.float64]


def cohort() -> Cohort:
    chance = np.random.default_rng(0)
    rounds = np.repeat(np.arange(1.0, 7), len(NAMES))
    return cohort_of([{
        "round": rounds, "client": np.tile(NAMES, 6), "norm": 1 + 0.05 * chance.random(len(rounds)),
        "norm_ratio": 1 + 0.05 * chance.random(len(rounds)), "cos_centre": 0.9 + 0.02 * chance.random(len(rounds)),
    }])  # fmt: skip


def weighed(margin: float = 0.0, likely: float = 0.01, hidden: float = 0.0, **numbers: float) -> Weighed:
    """What is found of the first client; of all others nothing. `hidden`: by how much another suspect hides it."""

    def first(value: float) -> Array:
        return np.array([value, *[0.0] * (len(NAMES) - 1)])

    margins = InsideMargins(NAMES, {"labels": first(margin)}, [None] * len(NAMES))
    told = {name: first(numbers.get(name, 0.0)) for name in ("following", "mixed", "labels", "elsewhere", "scale")}
    told["relabelled_at_times"] = first(0.0)
    inside = InsideEvidence(NAMES, {name: {1: {"steps": 4}} for name in NAMES}, {})
    kinds = ["unknown"] * len(NAMES)
    return Weighed(cohort(), inside, margins, first(likely), kinds, 0, True, told, first(likely - hidden))


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        (weighed(margin=1.3, likely=0.3), ["label-noise"]),
        (weighed(margin=1.3, likely=0.3, scale=0.9), []),  # other people: wrong labels move no column
        (weighed(margin=1.3, likely=0.05), []),  # nothing else of it is odd
        (weighed(margin=1.3, likely=0.4, hidden=0.35), ["label-noise"]),
        (weighed(margin=1.3, likely=0.3, hidden=0.25), []),
        (weighed(following=2.2), ["feature-fault"]),
        (weighed(following=2.2, elsewhere=1.5), []),  # another sensor
        (weighed(following=1.6), []),
        (weighed(mixed=1.8, labels=1.1), ["label-noise"]),
        (weighed(mixed=1.8, labels=0.4), []),
    ],
)
def test_what_accuses_alone_must_be_far_and_not_explained_by_other_inputs(found: Weighed, kinds: list[str]) -> None:
    assert [one.kind for one in found.accused()] == kinds
    assert not kinds or found.accused()[0].client == "c0"


def sketch_of(x: Array, y: npt.NDArray[np.int64]) -> Sketch:
    sketch = DataSketch()
    rows = BatchRows("numbers", x, x.astype(np.float32), np.arange(len(x)), 0.0, x.shape[1], y)
    sketch.add(rows, np.ones(len(x), bool))
    found = sketch_in(sketch.text(), 1)
    assert found is not None
    return found


def federation(faulty: tuple[int, ...], noise: float) -> InsideEvidence:
    chance = np.random.default_rng(3)
    mix = chance.normal(size=(6, 6))
    data = {}
    for place, name in enumerate(NAMES):
        y = chance.integers(0, 2, 100)
        x = chance.normal(size=(100, 6)) @ mix + 2.0 * y[:, None]
        data[name] = (sketch_of(x + noise * (place in faulty) * chance.normal(size=x.shape), y),)
    return InsideEvidence(NAMES, {}, data)


def test_two_faulty_clients_do_not_hide_each_other() -> None:
    found = weigh(cohort(), federation((2, 5), 0.45))
    assert (found.probabilities >= found.beside_all).all()
    assert found.probabilities[[2, 5]].sum() > found.beside_all[[2, 5]].sum() + 0.3
    assert np.delete(found.probabilities, (2, 5)).max() < 0.1
    clean = weigh(cohort(), federation((), 0.0))
    assert clean.probabilities.max() < 0.1 and not clean.accused()


def test_nan_that_training_made_is_no_fault_of_sending() -> None:
    turns = {
        name: {number: {"steps": 4, "odd_sent": 9, "odd_way": 9 if name != "c3" else 0} for number in (1, 2, 3)}
        for name in ("c3", "c4")
    }
    rest = {name: {number: {"steps": 4} for number in (1, 2, 3)} for name in NAMES if name not in turns}
    found = turn_unlikeness(InsideEvidence(NAMES, {**turns, **rest}, {}))["odd"]
    assert found[3] > 1 and np.delete(found, 3).max() == 0


def test_the_last_update_once_more_is_exact_unless_all_do_so() -> None:
    rounds = np.repeat(np.arange(1.0, 7), len(NAMES))
    chance = np.random.default_rng(1)
    norm, cosine = 1 + 0.1 * chance.random((6, len(NAMES))), 0.5 + 0.1 * chance.random((6, len(NAMES)))
    norm[2:, 0], cosine[3:, 0] = norm[2, 0], 1.0
    found = cohort_of([{
        "round": rounds, "client": np.tile(NAMES, 6), "norm": norm.ravel(), "norm_ratio": norm.ravel(),
        "cos_self": cosine.ravel(),
    }])  # fmt: skip
    assert [(one.client, one.kind, one.first) for one in certain_on(found)] == [("c0", "free-rider", 4)]
    norm[:, 0] *= 1 + 1e-3 * np.arange(6)  # as near as a training may come
    assert list(certain_on(cohort_of([{
        "round": rounds, "client": np.tile(NAMES, 6), "norm": norm.ravel(), "norm_ratio": norm.ravel(),
        "cos_self": cosine.ravel(),
    }]))) == []  # fmt: skip


@pytest.mark.parametrize(("steps", "samples", "is_more"), [(48, 128, True), (48, 768, False), (8, 16, False)])
def test_more_steps_and_more_passes_over_its_samples_count_together(steps: int, samples: int, is_more: bool) -> None:
    turns = {
        name: {number: {"steps": 8, "batch": 16, "samples": 128} for number in range(1, 5)} for name in NAMES
    }  # fmt: skip
    turns["c0"] = {number: {"steps": steps, "batch": 16, "samples": samples} for number in range(1, 5)}
    found = turn_unlikeness(InsideEvidence(NAMES, turns, {}))["more"]
    assert (found[0] > 2) == is_more and found[1:].max() == 0


def test_steps_that_follow_gradients_unevenly_at_everybody_are_no_deviation() -> None:
    chance = np.random.default_rng(2)

    def found(varies: float) -> Array:
        turns = {
            name: {
                number: {
                    "steps": 8, "lr": 0.1, "gradient": 1.0,
                    "stretch": 0.1 * float(np.exp(varies * chance.normal() + (0.5 if name == "c0" else 0.0))),
                }
                for number in range(1, 9)
            }
            for name in NAMES
        }  # fmt: skip
        return turn_unlikeness(InsideEvidence(NAMES, turns, {}))["stretch_at_times"]

    assert found(0.0)[0] > 5 and found(0.5)[0] < 1.5


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ({"level": 5.0, "level_at_times": 5.0, "direction": 6.0}, "target-fault"),
        ({"joint": 3.0, "direction": 2.0}, "feature-fault"),
        ({"relation": 2.0, "joint": 1.5}, "unknown"),  # either may be the cause
        ({"direction": 6.0, "loss": 4.0}, "unknown"),  # symptoms
    ],
)
def test_without_a_rule_the_kind_is_that_of_most_that_shows_a_cause(numbers: dict[str, float], kind: str) -> None:
    one = weighed(likely=0.95)
    told = {name: np.array([value, *[0.0] * (len(NAMES) - 1)]) for name, value in numbers.items()}
    (verdict,) = replace(one, numbers={**one.numbers, **told}).accused()
    assert (verdict.client, verdict.kind) == ("c0", kind)


def test_another_loss_explains_labels_that_look_wrong() -> None:
    one = weighed(margin=1.3, likely=0.95)
    assert [verdict.kind for verdict in one.accused()] == ["label-noise"]
    other = {"other": np.array([1.0, *[0.0] * (len(NAMES) - 1)])}
    assert [verdict.kind for verdict in replace(one, numbers={**one.numbers, **other}).accused()] == ["unknown"]
