"""Text from a run cannot command the terminal; numbers are written for people."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethos.cli.jsontext import jsonable
from stethos.cli.text import bytes_text, clean, count_text, cut, duration_text, number_text, share_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode λ", "plain ünïcode λ"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1bPdevice control\x1b\\after", "after"),
        ("\x1bcreset", "reset"),
        ("a\nb\tc\r\nd", "a b c d"),
        ("bell\x07 back\x08 nul\x00 del\x7f", "bell back nul del"),
        ("right\u202eto left", "rightto left"),
        ("lone \ud800 surrogate", "lone  surrogate"),
        ("cut short \x1b[", "cut short "),
        ("\x1b", ""),
    ],
)
def test_escape_sequences_and_control_characters_are_taken_out(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_lines_are_kept_where_asked() -> None:
    assert clean("a\n\x1b[1mb\tc", keep_lines=True) == "a\nb\tc"


@given(st.text(st.characters(exclude_categories=[])))
def test_nothing_that_commands_a_terminal_survives(text: str) -> None:
    shown = clean(text)
    assert not any(ord(one) < 32 or 0x7F <= ord(one) < 0xA0 for one in shown)
    shown.encode("utf-8")


def test_numbers_are_written_in_units_people_read() -> None:
    assert [bytes_text(n) for n in (0, 999, 1000, 3_200_000, 5 * 10**9, 10**15)] == ["0 B", "999 B", "1.0 kB", "3.2 MB", "5.0 GB", "1000.0 TB"]  # fmt: skip  # noqa: E501
    assert [duration_text(s) for s in (None, 0.85, 12.34, 245, 11_520, 190_000)] == ["-", "850 ms", "12.3 s", "4 m 05 s", "3 h 12 m", "2 d 4 h"]  # fmt: skip  # noqa: E501
    assert (count_text(12345), count_text(None), share_text(0.0084), number_text(0.12345678)) == ("12,345", "-", "0.84%", "0.123457")  # fmt: skip  # noqa: E501
    assert (cut("abcdef", 4), cut("abc", 4)) == ("abc…", "abc")


def test_json_has_no_nan_and_no_infinity() -> None:
    values = {"a": [math.nan, math.inf, -math.inf, 1.5], "b": b"\x01", "c": None, "d": {"e": (1, True)}}
    plain = jsonable(values)
    assert plain == {"a": ["NaN", "Infinity", "-Infinity", 1.5], "b": "01", "c": None, "d": {"e": [1, True]}}
    json.dumps(plain, allow_nan=False)
