"""Names that a caller chooses from a table, and the error for a name that is not in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from stethos.errors import UsageError
from stethos.nearest import did_you_mean

T = TypeVar("T")


def choose(what: str, name: str, table: Mapping[str, T]) -> T:
    """The entry of a table; an unknown name is an error that shows the nearest ones, or else all."""
    if name in table:
        return table[name]
    hint = did_you_mean(name, table, otherwise=f"choose one of {', '.join(sorted(table))}")
    raise UsageError(f"unknown {what} {name!r}", hint=hint)
