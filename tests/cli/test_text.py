"""Text from a run cannot command the terminal; numbers are written for people."""

from __future__ import annotations

import contextlib
import io
import json
import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethos.cli.screen.jsontext import print_json_rows, print_json_table
from stethos.cli.screen.text import (
    bytes_text,
    clean,
    cosine_text,
    count_text,
    cut,
    duration_text,
    ms_text,
    names_text,
    number_text,
    plural_text,
    share_text,
    short_text,
    times_text,
)
from stethos.export.csv_text import plain_text
from stethos.store.order import natural_key
from stethos.view.plain import jsonable

JOINED = (
    "\u0645\u06cc\u200c\u062e \u0915\u094d\u200d\u0937 \u2764\ufe0f\u200d\U0001f525"  # Persian, Hindi, a burning heart
)


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
        ("an Arabic\u061c mark", "an Arabic mark"),
        ("words\U000e0068\U000e0069 that\u200b nobody\ufeff sees\u2063", "words that nobody sees"),
        ("lo\u00adss lo\u034fss lo\u115f\u1160\u3164\uffa0ss\U000e0101", "loss loss loss"),
        ("lo\u200d\ufe0fss \u200closs", "loss loss"),
        (JOINED, JOINED),
        ("🔥" + "\ufe01\ufe0e" * 9, "🔥\ufe01\ufe0e"),
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


def test_no_mark_that_shows_nothing_is_left_between_latin_letters() -> None:
    """Python's table knows what only formats; those that are seen, and hieroglyphs' own, stay."""
    visible = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, *range(0x13430, 0x13440)}
    formats = [chr(one) for one in range(0x110000) if unicodedata.category(chr(one)) == "Cf" and one not in visible]
    others = [*"\u034f\u115f\u1160\u17b4\u17b5\u180b\u180f\u2065\u3164\ufe0f\uffa0\ufff0\U000e0100\U000e0fff"]
    for mark in (*formats, *others):
        assert clean(f"lo{mark}ss") == plain_text(f"lo{mark}ss") == "loss", f"U+{ord(mark):04X}"


def test_numbers_are_written_in_units_people_read() -> None:
    assert [bytes_text(n) for n in (0, 999, 1000, 3_200_000, 5 * 10**9, 10**15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "3.2 MB",
        "5.0 GB",
        "1000.0 TB",
    ]
    assert [duration_text(s) for s in (None, 0.85, 12.34, 245, 11_520, 190_000)] == [
        "-",
        "850 ms",
        "12.3 s",
        "4 m 05 s",
        "3 h 12 m",
        "2 d 4 h",
    ]
    assert (count_text(12345), count_text(None), share_text(0.0084), number_text(0.12345678)) == (
        "12,345",
        "-",
        "0.84%",
        "0.123457",
    )
    assert (cut("abcdef", 4), cut("abc", 4)) == ("abc…", "abc")


def test_json_has_no_nan_and_no_infinity() -> None:
    values = {"a": [math.nan, math.inf, -math.inf, 1.5], "b": b"\x01", "c": None, "d": {"e": (1, True)}}
    plain = jsonable(values)
    assert plain == {"a": ["NaN", "Infinity", "-Infinity", 1.5], "b": "01", "c": None, "d": {"e": [1, True]}}
    json.dumps(plain, allow_nan=False)


_CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(max_size=3), st.lists(st.floats()),
    st.dates(), st.dictionaries(st.one_of(st.none(), st.booleans(), st.text()), st.text(), max_size=2),
)  # fmt: skip


@given(st.lists(st.tuples(_CELLS, _CELLS), max_size=5), st.sampled_from([("a", "b"), ('100 % "s"', "{}")]))
def test_a_table_is_printed_as_its_rows_are(rows: list[tuple[object, object]], names: tuple[str, str]) -> None:
    said = []
    for print_it in (
        lambda: print_json_table(names, rows),
        lambda: print_json_rows(dict(zip(names, row, strict=True)) for row in rows),
    ):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            print_it()
        said.append(out.getvalue())
    assert said[0] == said[1] and len(json.loads(said[0])) == len(rows)


def test_many_rows_are_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_json_table(["step", "loss"], [(step, math.nan if step == 20_000 else step / 3) for step in range(20_002)])
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 20_002 and found[19_999] == {"step": 19_999, "loss": 19_999 / 3}
    assert found[20_000] == {"step": 20_000, "loss": "NaN"}


def test_numbers_for_narrow_columns() -> None:
    shown = [
        short_text(n) for n in (None, math.nan, 0.0, 0.03125, 12.54, 999.4, 25_340.4, 1.23e6, 1e-5, math.inf, -2.0)
    ]
    assert shown == ["-", "NaN", "0", "0.0312", "12.5", "999", "25,340", "1.2e+06", "1e-05", "inf", "-2.00"]
    assert [cosine_text(n) for n in (None, math.nan, 0.834, -0.1)] == ["-", "NaN", "+0.83", "-0.10"]
    assert [times_text(n) for n in (None, math.nan, 0.0, 0.07, 1.0, 3.84, 38.4)] == [
        "-",
        "NaN",
        "0.00x",
        "0.07x",
        "1.0x",
        "3.8x",
        "38.4x",
    ]
    assert [ms_text(n) for n in (None, 0.42, 12.0, 1500.0)] == ["-", "0.4 ms", "12 ms", "1.5 s"]
    assert (plural_text(1, "round"), plural_text(1000, "client")) == ("1 round", "1,000 clients")


def test_names_are_cleaned_counted_and_sorted_as_people_do() -> None:
    assert names_text(["a\x1b[31m", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert sorted(["c10", "c2", "c", "c2b", "10", "9"], key=natural_key) == ["9", "10", "c", "c2", "c2b", "c10"]
