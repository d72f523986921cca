"""How far from the others is far."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from stethos.outlier import deviations


def test_deviations_are_those_of_a_plain_computation() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 11)
    middle = statistics.median(values.tolist())
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values.tolist())
    assert deviations(values, 0.01).tolist() == pytest.approx([(value - middle) / spread for value in values.tolist()])


def test_values_that_hardly_differ_are_not_far_apart() -> None:
    assert deviations(np.array([1.0, 1.0, 1.0, 1.001]), 0.02).tolist() == pytest.approx([0, 0, 0, 0.05])


def test_what_is_not_known_is_not_far_and_what_is_infinite_is() -> None:
    found = deviations(np.array([1.0, 2.0, 3.0, np.nan, np.inf, -np.inf]), 0.1)
    assert found[3:].tolist() == [0.0, np.inf, -np.inf] and np.isfinite(found[:3]).all()


def test_two_values_say_nothing_about_each_other() -> None:
    assert deviations(np.array([1.0, 1e9]), 0.1).tolist() == [0.0, 0.0]
