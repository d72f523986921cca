"""The trend of a process's memory, against lines whose slope is known."""

from __future__ import annotations

import numpy as np
import pytest

from stethos.diagnose.system.trend import trend_of
from stethos.store.frame import Frame


def sampled(rss_bytes: np.ndarray) -> Frame:
    """A sample each second."""
    return Frame({"t_ns": 1e18 + 1e9 * np.arange(len(rss_bytes)), "rss_bytes": rss_bytes})


def test_a_line_has_its_slope_and_the_second_half_counts() -> None:
    trend = trend_of(sampled(5e8 + 1e6 * np.arange(200.0)), 100)
    assert trend is not None and trend.bytes_per_s == pytest.approx(1e6) and trend.rising == 1.0
    assert (trend.first_s, trend.duration_s) == (100, pytest.approx(90.0))  # from the first tenth to the last
    assert trend.grown_bytes == pytest.approx(90e6) and len(trend.series) == 60


def test_a_start_that_fills_caches_is_no_trend() -> None:
    trend = trend_of(sampled(np.minimum(1e8 * np.arange(200.0), 5e9)), 100)
    assert trend is not None and trend.bytes_per_s == trend.grown_bytes == trend.rising == 0.0


def test_peaks_and_samples_that_are_missing_do_not_bend_it() -> None:
    rss_bytes = 5e8 + 1e6 * np.arange(200.0)
    rss_bytes[150:153] = 9e10
    rss_bytes[::7] = np.nan
    trend = trend_of(sampled(rss_bytes), 100)
    assert trend is not None and trend.bytes_per_s == pytest.approx(1e6, rel=0.05)


def test_rows_may_come_in_any_order() -> None:
    frame = sampled(5e8 + 1e6 * np.arange(200.0))
    order = np.random.default_rng(0).permutation(200)
    mixed = Frame({name: frame[name][order] for name in frame.names})
    assert trend_of(mixed, 100) == trend_of(frame, 100)


def test_before_there_are_enough_samples_there_is_none() -> None:
    assert trend_of(sampled(np.arange(99.0)), 100) is None
    assert trend_of(sampled(np.full(200, np.nan)), 1) is None
