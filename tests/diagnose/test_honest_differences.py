"""What honest clients differ by, and faults beside it: few samples, one class, another camera, another schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stethos.diagnose.federated.cohort import Cohort, cohort_of
from stethos.diagnose.federated.data_sketch import Sketch, sketch_in
from stethos.diagnose.federated.data_unlikeness import data_unlikeness
from stethos.diagnose.federated.inside_data import data_margins
from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.repeated_samples import has_few
from stethos.diagnose.federated.unlikeness import turn_unlikeness
from stethos.diagnose.federated.weighing import numbers_of
from stethos.federate.batch_rows import BatchRows
from stethos.federate.data_sketch import DataSketch

NAMES = tuple(f"c{number}" for number in range(8))
ODD = 3
Array = npt.NDArray[np.float64]


def sketch_of(x: Array, y: npt.NDArray[np.int64] | None, values: Array | None = None) -> Sketch:
    sketch = DataSketch()
    rows = BatchRows("numbers", x, x.astype(np.float32), np.arange(len(x)), 0.0, x.shape[1], y, values)
    sketch.add(rows, np.ones(len(x), bool))
    found = sketch_in(sketch.text(), 1)
    assert found is not None
    return found


def cohort(loss_of_odd: float | None = None) -> Cohort:
    """Six rounds; with a loss of the odd client, those of the others are about 1."""
    chance = np.random.default_rng(0)
    rounds = np.repeat(np.arange(1.0, 7), len(NAMES))
    client = np.tile(NAMES, 6)
    columns: dict[str, Any] = {"round": rounds, "client": client, "norm": 1 + 0.05 * chance.random(len(rounds))}
    if loss_of_odd is not None:
        usual = 1 + 0.05 * chance.random(len(rounds))
        columns["entry_loss"] = np.where(client == NAMES[ODD], loss_of_odd, usual)
    return cohort_of([columns])


def tables(
    noise: float = 0.0, samples: int = 100, classes: int = 2, usual: int = 2, moved: float = 0.0
) -> InsideEvidence:  # fmt: skip
    """Clients with samples of so many classes; the odd one has noise, fewer, other classes, or lies elsewhere."""
    chance = np.random.default_rng(3)
    mix = chance.normal(size=(6, 6))
    data, turns = {}, {}
    for place, name in enumerate(NAMES):
        count = samples if place == ODD else 100
        y = chance.integers(0, classes if place == ODD else usual, count)
        x = chance.normal(size=(count, 6)) @ mix + 2.0 * y[:, None] + moved * (place == ODD)
        data[name] = (sketch_of(x + noise * (place == ODD) * chance.normal(size=x.shape), y),)
        turns[name] = {number: {"rows": count, "samples": float(count), "way": 1.0} for number in range(1, 7)}
    return InsideEvidence(NAMES, turns, data)


def found_in(inside: InsideEvidence, cohort: Cohort, chance: float = 0.0) -> dict[str, Array]:
    return numbers_of(cohort, np.where(np.arange(len(NAMES)) == ODD, chance, 0.0), inside)


def test_inputs_that_hang_together_otherwise_count_fully_only_where_they_cost_something() -> None:
    noisy = tables(noise=0.9, classes=1, usual=1)
    costly, harmless, unknown = (found_in(noisy, cohort(loss))["following"] for loss in (2.0, 1.02, None))
    assert costly[ODD] == unknown[ODD] > 1.5 and harmless[ODD] == 1.0


def test_of_hardly_any_samples_nothing_is_said_but_how_they_train_and_send() -> None:
    few = tables(noise=0.9, samples=12)
    assert has_few(few, [few.data[name][0] for name in NAMES]).tolist() == [place == ODD for place in range(8)]
    found = found_in(few, cohort(loss_of_odd=2.0), chance=0.99)
    assert all(
        found[name][ODD] == 0 for name in ("following", "labels", "judged", "loss", "loss_explained", "outwards")
    )
    many = {name: {1: {"rows": 100, "samples": 100.0}} for name in NAMES}  # twelve samples, each many times over
    assert not has_few(InsideEvidence(NAMES, many, few.data), [few.data[name][0] for name in NAMES]).any()


def test_who_has_one_class_alone_is_not_judged_by_where_updates_lead() -> None:
    assert found_in(tables(), cohort(), chance=0.99)["judged"][ODD] > 4
    assert found_in(tables(classes=1), cohort(), chance=0.99)["judged"][ODD] == 0


@pytest.mark.parametrize(("shares", "calls_two", "has_another_mix"), [
    ((1, 1, 1), True, False),  # an error
    ((1, 1, 4), False, True),
    ((1, 1, 4), True, True),  # both
])  # fmt: skip
def test_labels_that_are_surely_wrong_are_no_other_mix_of_classes(
    shares: tuple[float, ...], calls_two: bool, has_another_mix: bool
) -> None:
    """Else they would excuse themselves."""
    chance, whole = np.random.default_rng(4), []
    for place in range(len(NAMES)):
        usual = np.full(3, 1 / 3) if place != ODD else np.array(shares) / sum(shares)
        y = chance.choice(3, 150, p=usual)
        x = chance.normal(size=(150, 4)) + 2.5 * np.eye(3, 4)[y]
        whole.append(sketch_of(x, np.where(y == 0, 2, y) if place == ODD and calls_two else y))
    mix = data_unlikeness(whole)["mix"]
    assert (mix[ODD] >= 1) == has_another_mix and np.delete(mix, ODD).max() < 1


def test_whose_samples_lie_elsewhere_is_not_judged_by_where_updates_lead() -> None:
    assert found_in(tables(moved=3.0), cohort(), chance=0.99)["judged"][ODD] == 0


@pytest.mark.parametrize(("times", "least", "most"), [(0.5, 1.0, 2.5), (20.0, 6.0, 16.0)])
def test_another_learning_rate_counts_by_how_far_it_is(times: float, least: float, most: float) -> None:
    turns = {
        name: {number: {"lr": 0.1 * (times if place == ODD else 1.0)} for number in range(1, 7)}
        for place, name in enumerate(NAMES)
    }
    found = turn_unlikeness(InsideEvidence(NAMES, turns, {}))["rate"]
    assert least < found[ODD] < most and np.delete(found, ODD).max() == 0


def pictures(change: str) -> list[Sketch]:
    """Of 64 pixels from 0 to 1, most of them dark."""
    chance = np.random.default_rng(5)
    found = []
    for place in range(8):
        y = chance.integers(0, 2, 80)
        x = np.clip(chance.normal(size=(80, 64)) * 0.02 + 0.8 * (np.arange(64) % 8 == 2 * y[:, None]), 0, 1)
        if place == ODD:
            x = {"inverted": 1 - x, "raw": 255 * x, "as they are": x}[change]
        found.append(sketch_of(x, y))
    return found


def test_inverted_pictures_are_in_the_same_units_and_raw_ones_are_not() -> None:
    assert data_margins(pictures("raw"))["units"][ODD] > 1
    assert data_margins(pictures("inverted"))["units"][ODD] == 0
    assert data_margins(pictures("as they are"))["units"].max() < 1


def texts(share_of_others: float) -> list[Sketch]:
    """Sketches of words; this share of the words that all use is another at one client."""
    words = {**dict.fromkeys(range(20), 0.6), 90: 0.02}
    other = {word + 100 * (word < 20 * share_of_others): share for word, share in words.items()}
    x, y = np.random.default_rng(0).normal(size=(80, 4)), np.zeros(80, np.int64)
    plain = sketch_of(x, y)
    return [
        Sketch(1, "tokens", 4, 80.0, 0, (0,), plain.counts, plain.means, plain.scatter, tokens=other if one else words)
        for one in (place == ODD for place in range(8))
    ]


def test_lost_words_count_unless_all_are_others_as_in_another_language() -> None:
    assert data_unlikeness(texts(0.4))["lost"][ODD] > 1
    assert data_unlikeness(texts(1.0))["lost"][ODD] == 0


def regressions(wider: float = 1.0, shuffled: bool = False) -> InsideEvidence:
    """A curved relation; the odd client's inputs vary more, or its targets belong to other samples."""
    chance = np.random.default_rng(6)
    data = {}
    for place, name in enumerate(NAMES):
        x = chance.normal(size=(150, 4)) * (wider if place == ODD else 1.0)
        goal = x @ [2.0, 1.0, 0.5, -1.0] + 0.3 * x[:, 0] * x[:, 1] + 0.3 * chance.normal(size=150)
        data[name] = (sketch_of(x, None, (chance.permutation(goal) if shuffled and place == ODD else goal)[:, None]),)
    return InsideEvidence(NAMES, {}, data)


def test_targets_of_inputs_that_vary_more_are_farther_from_a_straight_line() -> None:
    assert found_in(regressions(shuffled=True), cohort())["relation"][ODD] > 2
    assert found_in(regressions(wider=2.5, shuffled=True), cohort())["relation"][ODD] > 2
    wider = [regressions(wider=2.5).data[name][0] for name in NAMES]
    assert data_unlikeness(wider)["relation"][ODD] > 1.5
    assert found_in(regressions(wider=2.5), cohort())["relation"][ODD] < 0.7


def rounded(filled: bool = False) -> list[Sketch]:
    """Measures in tenths, whose usual values are those of a class; three clients hold one that the others lack."""
    chance = np.random.default_rng(7)
    found = []
    for place in range(8):
        y = np.full(60, 2 if place in (1, 2, ODD) and not filled else place % 2, np.int64)
        x = np.round(chance.normal(size=(60, 4)) * np.where(y == 2, 0.04, 0.5)[:, None] + 2.0 * y[:, None], 1)
        if filled and place == ODD:
            x = np.where(chance.random(x.shape) < 0.6, 7.5, x)
        found.append(sketch_of(x, y))
    return found


def test_values_of_a_class_that_few_hold_are_not_said_to_be_filled_in() -> None:
    assert data_margins(rounded(filled=True))["imputed"][ODD] > 1
    assert data_margins(rounded())["imputed"].max() < 1


def test_inputs_that_lie_elsewhere_must_hang_together_otherwise_in_two_ways() -> None:
    chance = np.random.default_rng(8)
    mix = chance.normal(size=(6, 6))
    data = {}
    for place, name in enumerate(NAMES):
        x = chance.normal(size=(150, 6)) * (np.array([3.0, 3, 1, 1, 1, 1]) if place == ODD else 1.0) @ mix
        data[name] = (sketch_of(x + 2.0 * (place == ODD), np.zeros(150, np.int64)),)
    inside = InsideEvidence(NAMES, {}, data)
    told = data_unlikeness([data[name][0] for name in NAMES])
    first = max(told[name][ODD] for name in ("worse", "unexplained", "tilt"))
    assert found_in(inside, cohort())["following"][ODD] <= max(0.5 * first, 0.5)
    assert found_in(tables(noise=0.9), cohort())["following"][ODD] > 1.5
