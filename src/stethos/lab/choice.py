"""Names that a caller chooses from a table, and the error for a name that is not in it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from stethos.errors import UsageError

T = TypeVar("T")


def choose(what: str, name: str, table: Mapping[str, T]) -> T:
    """The entry of a table; an unknown name is an error that shows the nearest ones, or else all."""
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=3, cutoff=0.5)
    raise UsageError(
        f"unknown {what} {name!r}",
        hint=f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(sorted(table))}",
    )
