"""How far a client stands out, against a plain twin that leaves each one out in turn."""

from __future__ import annotations

import numpy as np
import pytest

from stethos.diagnose.federated.standing_out import around_others, deviations, margins, second_of_others


def plain_margin(values: np.ndarray, place: int, least: float, floor: float) -> float:
    others = np.array([one for at, one in enumerate(values) if at != place and np.isfinite(one)])
    middle = np.median(others)
    scale = 1.4826 * np.median(np.abs(others - middle)) * (1 + 2 / len(others))
    above = values[place] - middle
    second = sorted(np.abs(others - middle))[-2]
    return min(above / least, above / np.hypot(scale, floor) / 3.5, above / max(second, floor) / 2)


@pytest.mark.parametrize("count", [4, 9, 60, 600])
def test_numbers_are_those_of_a_plain_twin(count: int) -> None:
    values = np.random.default_rng(count).standard_t(3, count)
    values[1], values[2] = 40.0, 38.0
    values[3:4] = np.nan if count > 5 else values[3]
    found = margins(values, 0.5, 3.5, 0.1)
    for place in range(count):
        expected = plain_margin(values, place, 0.5, 0.1) if np.isfinite(values[place]) else 0.0
        assert found[place] == pytest.approx(expected, rel=0.02, abs=0.02)


def test_too_few_to_compare_is_not_known() -> None:
    assert margins(np.array([1.0, 2.0, 90.0]), 0.1).tolist() == [0.0, 0.0, 0.0]
    assert np.isnan(deviations(np.array([1.0, 2.0, 90.0]), 0.1)).all()


def test_what_the_others_have_is_the_same_for_all_clients_at_once_as_one_after_the_other() -> None:
    draw = np.random.default_rng(0)
    for count in (4, 5, 8, 9):
        values = np.round(draw.normal(size=(count, 6)), 1)  # with equal ones
        middles, differ = around_others(values)
        second = second_of_others(values)
        for place in range(count):
            others = np.delete(values, place, axis=0)
            assert np.allclose(middles[place], np.median(others, axis=0))
            assert np.allclose(differ[place], np.median(np.abs(others - np.median(others, axis=0)), axis=0))
            assert (second[place] == np.sort(others, axis=0)[-2]).all()
