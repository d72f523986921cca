"""Inputs in another order, by another scaler, or lost to one token stand out; other people's do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from stethos.diagnose.federated.column_order import column_order
from stethos.diagnose.federated.data_sketch import Sketch, fewest_samples, sketch_in
from stethos.diagnose.federated.data_unlikeness import data_unlikeness
from stethos.diagnose.federated.token_unlikeness import unknown_words
from stethos.federate.batch_rows import BatchRows
from stethos.federate.data_sketch import DataSketch

Array = npt.NDArray[np.float64]
Spoil = Callable[[Array, npt.NDArray[np.int64]], tuple[Array, npt.NDArray[np.int64]]]
ODD, CLIENTS = 3, 8


def sketch_of(x: Array, y: npt.NDArray[np.int64]) -> Sketch:
    sketch = DataSketch()
    columns = x.astype(np.float32)
    sketch.add(BatchRows("numbers", x, columns, np.arange(len(x)), 0.0, x.shape[1], y), np.ones(len(x), bool))
    found = sketch_in(sketch.text(), 1)
    assert found is not None
    return found


def tables(spoil: Spoil, places: tuple[int, ...] = (ODD,), size: int = 120) -> tuple[Sketch, ...]:
    """Three classes in eight inputs that hang together; of some clients something is done to them."""
    chance = np.random.default_rng(4)
    mix, middles = chance.normal(size=(3, 8)), 1.5 * chance.normal(size=(3, 8))
    found = []
    for place in range(CLIENTS):
        y = chance.integers(0, 3, size)
        x = chance.normal(size=(size, 3)) @ mix + 0.5 * chance.normal(size=(size, 8)) + middles[y]
        found.append(sketch_of(*spoil(x, y)) if place in places else sketch_of(x, y))
    return tuple(found)


@pytest.mark.parametrize("order", [[1, 2, 3, 4, 5, 6, 7, 0], [7, 6, 5, 4, 3, 2, 1, 0], [0, 1, 5, 3, 4, 2, 6, 7]])
@pytest.mark.parametrize("places", [(ODD,), (ODD, 6)])
def test_inputs_in_another_order_stand_out(order: list[int], places: tuple[int, ...]) -> None:
    found = column_order(tables(lambda x, y: (x[:, order], y), places))
    assert found[list(places)].min() > 1
    assert np.delete(found, places).max() < 0.7


def test_a_turned_picture_stands_out_and_a_brighter_one_does_not() -> None:
    chance = np.random.default_rng(1)
    shapes = chance.normal(size=(4, 6, 6)).cumsum(1)

    def pictures(change: Callable[[Array], Array]) -> Sketch:
        y = chance.integers(0, 4, 100)
        x = shapes[y] + chance.normal(0, 0.5, (100, 6, 6))
        return sketch_of(change(x).reshape(100, 36), y)

    found = column_order((
        *(pictures(lambda x: x) for _ in range(6)), pictures(lambda x: x.swapaxes(1, 2)),
        pictures(lambda x: 1.3 * x + 2),
    ))  # fmt: skip
    assert found[6] > 1
    assert np.delete(found, 6).max() < 0.7


@pytest.mark.parametrize("spoil", [
    lambda x, y: (1.5 * x + 2, y), lambda x, y: (x[y != 0], y[y != 0]), lambda x, y: (x[x[:, 0] > 0], y[x[:, 0] > 0]),
])  # fmt: skip
def test_other_people_are_no_other_order(spoil: Spoil) -> None:
    assert column_order(tables(spoil)).max() < 0.7


def test_a_scaler_of_its_own_stands_out_and_other_people_do_not() -> None:
    own = data_unlikeness(tables(lambda x, y: ((x - x.min(0)) / np.ptp(x, axis=0), y)))["rescaled"]
    assert own[ODD] > 1.5 and np.delete(own, ODD).max() < 0.5
    older = data_unlikeness(tables(lambda x, y: (x + np.array([3.0, 0, 0, 2, 0, 0, 0, 0]), y)))["rescaled"]
    assert older.max() < 0.5


def texts(change: Callable[[Array, np.random.Generator], Array]) -> list[Sketch | None]:
    """Texts of words from 2 on, 1 for words that are unknown, filled up with 0; of the fourth client changed."""
    chance = np.random.default_rng(2)
    found: list[Sketch | None] = []
    for place in range(CLIENTS):
        words = np.where(chance.random((80, 12)) < 0.15, 1, chance.integers(2, 60, (80, 12)))
        tokens = np.where(np.arange(12) < chance.integers(6, 13, (80, 1)), words, 0)
        tokens = change(tokens, chance) if place == ODD else tokens
        counts = np.stack([np.bincount(row, minlength=64) for row in tokens]) / 12
        sketch = DataSketch()
        flat = (np.repeat(np.arange(80), 12), tokens.reshape(-1))
        rows = BatchRows("tokens", counts, tokens * 1.0, np.arange(80), 0.0, 12, None, None, flat)
        sketch.add(rows, np.ones(80, bool))
        found.append(sketch_in(sketch.text(), 1))
    return found


def test_words_that_are_lost_to_one_token_show_and_short_texts_do_not() -> None:
    lost = unknown_words(
        texts(lambda tokens, chance: np.where((chance.random(tokens.shape) < 0.5) & (tokens > 0), 1, tokens))
    )
    assert lost[0][ODD] > 0.2 and np.delete(lost[0], ODD).max() < 0.1
    short = unknown_words(texts(lambda tokens, chance: np.where(np.arange(12) < 5, tokens, 0)))
    assert short[0].max() < 0.1


def test_how_many_samples_are_few_is_told_by_the_federation() -> None:
    small, large = tables(lambda x, y: (x, y), size=13), tables(lambda x, y: (x[:9], y[:9]))
    assert fewest_samples(small, 15) < 13
    assert fewest_samples(large, 15) == 15


def test_negatives_of_pictures_stand_out_and_darker_ones_do_not() -> None:
    chance = np.random.default_rng(3)
    shapes = chance.random((3, 64)) ** 3

    def pictures(change: Callable[[Array], Array]) -> Sketch:
        y = chance.integers(0, 3, 100)
        x = np.clip(shapes[y] + chance.normal(0, 0.05, (100, 64)), 0, 1)
        return sketch_of(np.arcsinh(change(x)), y)

    usual = [pictures(lambda x: x) for _ in range(CLIENTS - 1)]
    assert column_order((pictures(lambda x: 1 - x), *usual))[0] > 1
    assert column_order((pictures(lambda x: 0.6 * x), *usual))[0] < 0.7
