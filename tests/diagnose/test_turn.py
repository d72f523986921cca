"""Clients' turns as grids."""

from __future__ import annotations

import math

import numpy as np
import pytest
from examining import cases

from stethos.diagnose.turn import Turns, others_median, turns_of
from stethos.diagnose.window import Window


def plain_others_median(grid: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """The same, the slow and plain way."""
    found = np.full_like(grid, math.nan)
    for row, column in np.ndindex(*grid.shape):
        others = [value for place, value in enumerate(grid[:, column]) if place != row and not math.isnan(value)]
        if len(others) >= 2:
            found[row, column] = np.median(others)
    return found


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 7, 10])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_median_of_the_others_is_that_of_a_plain_twin(clients: int, share: float) -> None:
    made = np.random.default_rng(clients)
    grid = made.normal(size=(clients, 20)).round(1)
    grid[made.random(grid.shape) < share] = math.nan
    np.testing.assert_allclose(others_median(grid), plain_others_median(grid))


def test_each_federation_stands_for_itself() -> None:
    rows = cases.turns(lambda client, number, row: {"federation": "a" if number < 6 else "b's"})
    first, second = turns_of(Window({"client_rounds": rows}))
    assert (first.federation, first.rounds, second.rounds) == ("a", [1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
    assert second.where("round > 3") == "WHERE federation = 'b''s' AND round > 3 "
    (alone,) = turns_of(Window({"client_rounds": cases.turns()}))
    assert alone.where() == ""


def test_a_client_that_came_back_is_seen_as_it_was_last() -> None:
    rows = [
        {"client": "c1", "round": 1, "t_ns": 2, "status": "ok", "duration_ms": 5.0},
        {"client": "c1", "round": 1, "t_ns": 1, "status": "failed", "duration_ms": 9.0},
    ]
    (turns,) = turns_of(Window({"client_rounds": cases.frame_of(rows)}))
    assert isinstance(turns, Turns) and turns.grid("duration_ms").tolist() == [[5.0]] and turns.is_ok.all()
