"""Numbers drawn as characters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethos.cli.screen.spark import ODD, UNKNOWN, bar, sparkline, two_way_bar

floats = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([], ""),
        ([0.0, 1.0], "▁█"),
        ([8, 7, 6, 5, 4, 3, 2, 1], "█▇▆▅▄▃▂▁"),
        ([2.5], "▄"),
        ([2.5, 2.5], "▄▄"),
        ([1.0, None, 0.0], "█·▁"),
        ([1.0, math.nan, 0.0, math.inf], "█✗▁✗"),
        ([None, None], "··"),
        ([math.nan], "✗"),
        ([-1.7e308, 1.7e308], "▁█"),
    ],
)
def test_a_sparkline_spans_from_the_lowest_to_the_highest(values: list[float | None], drawn: str) -> None:
    assert sparkline(values, 20) == drawn


def test_neighbours_share_a_character_and_a_single_nan_among_them_shows() -> None:
    assert sparkline([0, 0, 4, 4, 8, 8], 3) == "▁▅█"
    assert sparkline([1.0] * 500 + [math.nan] + [1.0] * 499, 10) == "▄▄▄▄▄✗▄▄▄▄"
    assert sparkline([None, None, 1.0, None], 2) == "·▄"


@given(st.lists(st.none() | floats, max_size=200), st.integers(1, 50))
def test_a_sparkline_is_never_wider_than_asked_for(values: list[float | None], width: int) -> None:
    drawn = sparkline(values, width)
    assert len(drawn) == min(len(values), width)
    assert set(drawn) <= set("▁▂▃▄▅▆▇█" + ODD + UNKNOWN)


def test_a_bar_shows_eighths_and_never_hides_what_is_above_nothing() -> None:
    assert [bar(share, 4) for share in (1.0, 0.5, 0.53125, 1e-9, 0.0, None, math.nan, -1.0, 7.0)] == [
        "████",
        "██",
        "██▏",
        "▏",
        "",
        "",
        "",
        "",
        "████",
    ]


def test_a_bar_goes_both_ways_from_the_middle() -> None:
    assert [two_way_bar(share, 2) for share in (1.0, -1.0, 0.5, 0.0)] == ["  │██", "██│  ", "  │█ ", "  │  "]
    assert two_way_bar(None, 2) == two_way_bar(math.nan, 2) == "  ·  "


@given(st.none() | floats, st.integers(1, 20))
def test_bars_keep_their_width(share: float | None, width: int) -> None:
    assert len(bar(share, width)) <= width and len(two_way_bar(share, width)) == 2 * width + 1
