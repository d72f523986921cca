"""Facts of a turn as they are written, and as they were written before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stethos.turn_facts import LETTERS, packed, unpacked

PLAIN: dict[str, Any] = {
    "sent_sent": 1.0, "way_sent": 1.0, "begin": 0.0, "way": 0.2652, "lr": 0.08, "steps": 8, "rows": 32, "new": 0,
    "distinct": 1.0, "answers": [0, 0, 2, 0, 1, 1, 3, 1, 12, 3, 3, 1], "log_p": -1.451,
}  # fmt: skip


@pytest.mark.parametrize(
    "facts",
    [
        PLAIN,
        {},
        {"loss": "CrossEntropyLoss", "lr": 0.1},
        {"rows": 32, "new": 4, "way_sent": 0.5, "sent_sent": 1.0},  # neither how distinct nor where it began is known
        {**PLAIN, "way_sent": -1.0, "begin": 0.31, "distinct": 0.4, "log_p": None, "residual": [0.1, -0.2, 32]},
        {"answers": [51, 51, 30], "rows": 1, "new": 0, "distinct": 1.0},
        {"answers": [0, 60, 1]},  # more classes than letters: as it is
        {"answers": []},
    ],
)
def test_what_is_read_is_what_was_told(facts: dict[str, Any]) -> None:
    assert unpacked(json.loads(json.dumps(packed(facts)))) == facts


def test_rows_of_before_are_read_as_they_are() -> None:
    assert unpacked(PLAIN) == PLAIN
    assert unpacked({"rows": 3, "way_sent": 1.0}) == {"rows": 3, "way_sent": 1.0}


def test_each_fact_has_a_letter_of_its_own() -> None:
    assert len(set(LETTERS.values())) == len(LETTERS)
    assert all(len(letter) == 1 for letter in LETTERS.values())
