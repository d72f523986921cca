"""Strings of SQL."""

from __future__ import annotations

from stethos.store.literal import literal


def test_quotes_and_zeros_are_kept() -> None:
    assert literal("it's") == "'it''s'" and literal("a\0b") == "('a' || chr(0) || 'b')"
