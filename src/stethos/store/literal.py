"""Strings and identifiers of SQL."""

from __future__ import annotations


def literal(text: str) -> str:
    """A string of SQL."""
    quoted = "'" + text.replace("'", "''") + "'"
    return "(" + quoted.replace("\0", "' || chr(0) || '") + ")" if "\0" in text else quoted
