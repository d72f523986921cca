"""How unlike the others clients are in plain numbers: what stands out, and what does not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from stethos.diagnose.federated.cohort import cohort_of
from stethos.diagnose.federated.data_sketch import Sketch, sketch_in
from stethos.diagnose.federated.data_unlikeness import data_unlikeness, mixed_within_classes
from stethos.diagnose.federated.unlikeness import relative
from stethos.diagnose.federated.verdict import certain_on
from stethos.diagnose.federated.weighing import KNOTS, load_weights, terms_of
from stethos.federate.batch_rows import BatchRows
from stethos.federate.data_sketch import DataSketch

Array = npt.NDArray[np.float64]


def sketch_of(x: Array, y: npt.NDArray[np.int64]) -> Sketch:
    sketch = DataSketch()
    sketch.add(
        BatchRows("numbers", x, x.astype(np.float32), np.arange(len(x)), 0.0, x.shape[1], y), np.ones(len(x), bool)
    )
    found = sketch_in(sketch.text(), 1)
    assert found is not None
    return found


def clients(wrong_labels: float = 0.0, noise: float = 0.0, count: int = 8, samples: int = 120) -> list[Sketch]:
    """Two classes in six inputs that hang together; the fourth client is another."""
    chance = np.random.default_rng(3)
    mix = chance.normal(size=(6, 6))
    found = []
    for place in range(count):
        y = chance.integers(0, 2, samples)
        x = chance.normal(size=(samples, 6)) @ mix + 4.0 * y[:, None]
        if place == 3:
            y = np.where(chance.random(samples) < wrong_labels, 1 - y, y)
            x = x + noise * chance.normal(size=x.shape)
        found.append(sketch_of(x, y))
    return found


def test_classes_with_wrong_labels_spread_towards_each_other() -> None:
    share, error = mixed_within_classes(clients(wrong_labels=0.4))
    assert share[3] > 0.3 and share[3] > 5 * error[3]
    assert np.abs(np.delete(share, 3)).max() < 0.25
    noisy, _ = mixed_within_classes(clients(noise=1.0))  # they spread in all directions
    assert noisy[3] < 0.3


def test_classes_that_hardly_differ_do_not_tell_of_wrong_labels() -> None:
    chance = np.random.default_rng(6)
    found = []
    for place in range(8):
        y = np.zeros(150, np.int64) if place == 3 else chance.integers(0, 2, 150)
        found.append(sketch_of(chance.normal(size=(150, 12)) + 0.12 * y[:, None], y))
    share, _ = mixed_within_classes(found)
    assert np.isnan(share).all()


def test_who_has_more_of_a_class_that_varies_more_has_no_mixed_classes() -> None:
    chance = np.random.default_rng(5)
    found = []
    for place in range(8):
        y = (chance.random(200) < (0.9 if place == 3 else 0.2)).astype(np.int64)
        x = chance.normal(size=(200, 4))
        x[:, 0] = np.where(y == 1, 3 + 2 * x[:, 0], x[:, 0])  # counts of what is rare, and of what is common
        found.append(sketch_of(x, y))
    share, error = mixed_within_classes(found)
    assert share[3] > 0.3 and relative(share, 0.02)[3] > 1.5  # as with wrong labels
    assert relative(share, 0.02, error)[3] < 1.0


def test_wrong_labels_leave_samples_where_they_are_and_other_inputs_do_not() -> None:
    chance = np.random.default_rng(4)
    wrong, elsewhere = clients(wrong_labels=0.5), clients()
    y = chance.integers(0, 2, 120)
    elsewhere[3] = sketch_of(chance.normal(size=(120, 6)) + 4.0 * y[:, None] + np.array([6.0, 0, 0, -6.0, 0, 0]), y)
    assert data_unlikeness(wrong)["elsewhere"].max() < 0.5
    found = data_unlikeness(elsewhere)["elsewhere"]
    assert found[3] > 1.2 and np.delete(found, 3).max() < 0.7


def test_inputs_that_do_not_follow_from_each_other_stand_out() -> None:
    numbers = data_unlikeness(clients(noise=1.5))
    assert numbers["worse"][3] > 1.5 and np.delete(numbers["worse"], 3).max() < 1
    honest = data_unlikeness(clients())
    assert max(honest[name].max() for name in ("worse", "tilt", "unexplained")) < 1.5


def test_terms_say_how_far_a_number_gets_between_knots() -> None:
    assert terms_of("rest", np.array([0.1, 0.5]))[:, :].sum() == 0
    assert terms_of("rest", np.array([3.0]))[0].tolist() == pytest.approx([1.0, 1.0, np.log2(1.5), 0.0])
    assert terms_of("place", np.array([16.0])).tolist() == [[1.0]]  # how honest sites differ: not the more the farther
    assert all(len(slopes) <= len(KNOTS) - 1 for slopes in load_weights("inside").slopes.values())


def test_who_sends_nothing_at_times_is_not_odd_where_most_do() -> None:
    rows = [
        {"round": float(number), "client": f"c{place}", "norm": norm, "norm_ratio": norm, "nan": 0.0, "inf": 0.0}
        for number in range(1, 7)
        for place in range(8)
        for norm in [0.0 if place == 0 or (number + place) % 2 else 1.0]
    ]
    cohort = cohort_of([{name: np.array([row[name] for row in rows]) for name in rows[0]}])
    assert [one.client for one in certain_on(cohort)] == ["c0"]


def texts(client: int, drops: float = 0.0, length: int = 12) -> Sketch:
    """Lines of words that all sites use, some more often; a tokenizer may not know some of them."""
    chance = np.random.default_rng([7, client])
    often = np.arange(1, 61) ** -0.8 * chance.uniform(0.6, 1.6, 60)
    tokens = chance.choice(60, (200, length), p=often / often.sum()) + 1
    unknown = np.random.default_rng(1).permutation(np.arange(1, 61))[: int(60 * drops)]
    tokens = np.where(np.isin(tokens, unknown), 99, tokens)
    flat = (np.repeat(np.arange(200), length), tokens.reshape(-1))
    y = chance.integers(0, 2, 200)
    sketch = DataSketch()
    sketch.add(
        BatchRows(
            "tokens", chance.random((200, 4)), tokens.astype(float), np.arange(200), 0.0, length, y, None, flat
        ),
        np.ones(200, bool),
    )  # fmt: skip
    found = sketch_in(sketch.text(), 1)
    assert found is not None
    return found


def test_words_of_all_that_one_site_lacks_stand_out_and_shorter_texts_do_not() -> None:
    dropped = data_unlikeness([texts(client, 0.3 if client == 3 else 0.0) for client in range(8)])["lost"]
    assert dropped[3] > 1 and np.delete(dropped, 3).max() < 0.7
    shorter = data_unlikeness([texts(client, length=6 if client == 3 else 12) for client in range(8)])["lost"]
    assert shorter.max() < 0.7
