"""Suggestions for names that are not known."""

from __future__ import annotations

from stethos.nearest import did_you_mean, nearest

TABLES = ("steps", "spans", "client_rounds", "rounds", "GPU")


def test_names_of_like_spelling_come_first_then_those_that_contain_it() -> None:
    assert nearest("stepz", TABLES)[0] == "steps"
    assert nearest("round", TABLES)[:2] == ["rounds", "client_rounds"]
    assert nearest("STEP", TABLES)[0] == "steps" and nearest("gpus", TABLES) == ["GPU"]
    assert nearest("stepz", TABLES, 1) == ["steps"]


def test_what_looks_like_nothing_gets_no_suggestion() -> None:
    assert nearest("zzz", TABLES) == [] == nearest("", TABLES) == nearest("x", ())
    assert did_you_mean("zzz", TABLES, "tables: steps") == "tables: steps"


def test_a_hint_says_what_else_there_is() -> None:
    assert did_you_mean("gpus", TABLES) == "did you mean GPU?"
    assert did_you_mean("gpus", TABLES, "listed", "listed") == "did you mean GPU? listed"
