"""What every export shares: files that appear only when they are whole, progress, and what was written."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
DEFAULT_LIMIT = 200_000  # rows of a table on a time line or in a series, before it is thinned


class Advance(Protocol):
    """Called with the number of rows done since the last call."""

    def __call__(self, count: int, /) -> None: ...


def no_progress(count: int, /) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class Written:
    """What an export wrote: `counts` by kind of thing, and in words what it left out or changed."""

    path: str
    counts: Mapping[str, int]
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place at the end of a good block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def plain(value: Any) -> Any:
    """A value as JSON has it: NaN and infinities become text; and text that can be printed."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def printable(text: str) -> str:
    """Text without characters that readers stumble over: control characters and halves of surrogate pairs."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def known(**values: Any) -> dict[str, Any]:
    """The values that were measured, as JSON has them."""
    return {name: plain(value) for name, value in values.items() if value is not None}


def fields_of(text: str | None) -> dict[str, Any]:
    """What a column with a JSON object holds; text that is none holds nothing."""
    try:
        fields = json.loads(text, parse_constant=str) if text else {}
    except ValueError:
        return {}
    return {printable(str(name)): plain(value) for name, value in fields.items()} if isinstance(fields, dict) else {}


# One encoder for all: `json.dumps` would make a new one for every event.
compact_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def share_of(rows: int, limit: int) -> int:
    """Of how many rows one is kept, so that at most `limit` are."""
    return max(1, -(-rows // max(1, limit)))
