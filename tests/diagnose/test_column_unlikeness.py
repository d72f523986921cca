"""One input that is broken stands out alone; a site that differs, or chooses its samples, does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from stethos.diagnose.federated.column_unlikeness import column_unlikeness
from stethos.diagnose.federated.data_sketch import Sketch, sketch_in
from stethos.diagnose.federated.data_unlikeness import data_unlikeness
from stethos.federate.batch_rows import BatchRows
from stethos.federate.data_sketch import DataSketch

Array = npt.NDArray[np.float64]
ODD = 3


def sketch_of(x: Array, y: npt.NDArray[np.int64]) -> Sketch:
    sketch = DataSketch()
    sketch.add(
        BatchRows("numbers", x, x.astype(np.float32), np.arange(len(x)), 0.0, x.shape[1], y), np.ones(len(x), bool)
    )
    found = sketch_in(sketch.text(), 1)
    assert found is not None
    return found


def clients(spoil: Callable[[Array, np.random.Generator], Array], places: tuple[int, ...] = (ODD,)) -> list[Sketch]:
    """Three classes in eight inputs that hang together; of the fourth client, or several, something is done to them."""
    chance = np.random.default_rng(4)
    mix, middles = chance.normal(size=(3, 8)), 1.5 * chance.normal(size=(3, 8))
    found = []
    for place in range(8):
        y = chance.integers(0, 3, 400)
        x = chance.normal(size=(400, 3)) @ mix + 0.5 * chance.normal(size=(400, 8)) + middles[y]
        if place in places:
            x = np.column_stack([spoil(x, chance), y])
            x, y = x[:150, :8], x[:150, 8].astype(np.int64)
        found.append(sketch_of(x[:150], y[:150]))
    return found


def shifted(x: Array, chance: np.random.Generator) -> Array:
    return np.column_stack([x[:, :2], np.roll(x[:, 2], 1), x[:, 3:]])


def swapped(x: Array, chance: np.random.Generator) -> Array:
    return x[:, [1, 0, 2, 3, 4, 5, 6, 7]]


def dead(x: Array, chance: np.random.Generator) -> Array:
    return np.column_stack([x[:, :2], np.zeros(len(x)), x[:, 3:]])


def partly_missing(x: Array, chance: np.random.Generator) -> Array:
    return np.column_stack([x[:, :2], np.where(chance.random(len(x)) < 0.4, 0.0, x[:, 2]), x[:, 3:]])


@pytest.mark.parametrize("spoil", [shifted, swapped])
@pytest.mark.parametrize("places", [(ODD,), (ODD, 6)])
def test_a_column_that_no_longer_belongs_to_its_row_stands_out(
    spoil: Callable[[Array, np.random.Generator], Array], places: tuple[int, ...]
) -> None:
    found = column_unlikeness(clients(spoil, places))
    for place in places:
        assert max(found["joint"][place] / 1.5, found["link"][place] / 2) > 1
    assert np.delete(np.maximum(found["joint"], found["link"]), places).max() < 0.7


def test_an_input_that_never_changes_and_one_that_is_filled_in_stand_out() -> None:
    assert column_unlikeness(clients(dead))["fixed"][ODD] > 2.4
    found = column_unlikeness(clients(partly_missing))["fixed"]
    assert 0.7 < found[ODD] < 1.3 and np.delete(found, ODD).max() == 0


@pytest.mark.parametrize(
    "differ",
    [
        lambda x, chance: 1.4 * x + 0.5,  # another gain
        lambda x, chance: x[np.argsort(-x[:, 2])],  # only samples with a large value of one input
        lambda x, chance: x[np.argsort(-x.sum(1))],
        lambda x, chance: x + 0.3,
    ],
)
def test_a_site_with_other_data_has_no_broken_column(differ: Callable[[Array, np.random.Generator], Array]) -> None:
    found = column_unlikeness(clients(differ))
    assert max(found["joint"][ODD] / 1.5, found["link"][ODD] / 2, found["fixed"][ODD]) < 0.7


def test_an_input_of_few_values_may_always_be_the_same() -> None:
    chance = np.random.default_rng(2)
    found = []
    for place in range(8):
        x, y = chance.normal(size=(100, 5)), chance.integers(0, 2, 100)
        x[:, 0] = 1.0 if place == ODD else chance.integers(0, 2, 100)  # whom a clinic treats
        found.append(sketch_of(x, y))
    assert column_unlikeness(found)["fixed"].max() == 0


def test_few_clients_few_inputs_or_none_are_not_compared() -> None:
    known = clients(dead)
    few: list[list[Sketch | None]] = [[], [None] * 8, list(known[:3])]
    for some in few:
        assert all(values.max(initial=0) == 0 for values in column_unlikeness(some).values())


def words_of(tokens: npt.NDArray[np.int64], y: npt.NDArray[np.int64]) -> Sketch:
    count, width = tokens.shape
    features = np.zeros((count, 64))
    np.add.at(features, (np.repeat(np.arange(count), width), tokens.reshape(-1) % 64), 1.0)
    rows = BatchRows(
        "tokens", np.sqrt(features / width), tokens.astype(np.float64), np.arange(count), 0.0, width, y,
        tokens=(np.repeat(np.arange(count), width), tokens.reshape(-1)),
    )  # fmt: skip
    sketch = DataSketch()
    sketch.add(rows, np.ones(count, bool))
    found = sketch_in(sketch.text(), 1)
    assert found is not None
    return found


def test_texts_whose_second_half_is_a_copy_repeat_their_words() -> None:
    chance = np.random.default_rng(1)
    found = []
    for place in range(7):
        tokens, y = chance.integers(1, 200, (80, 12)), chance.integers(0, 2, 80)
        if place == ODD:
            tokens[:, 6:] = tokens[:, :6]
        if place == 5:  # shorter texts are filled up
            tokens[:, 8:] = 0
        found.append(words_of(tokens, y))
    again = data_unlikeness(found)["again"]
    assert again[ODD] > 1.5 and np.delete(again, ODD).max() < 0.7
