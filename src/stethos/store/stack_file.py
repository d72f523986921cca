"""Stacks that were kept with a run, one row of `stacks` per line: written when something was wrong, read by queries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stethos.errors import RecordingError
from stethos.record.border import LARGEST_LINES, append_file, read_file
from stethos.redact import redact
from stethos.schema import STACKS

FILE = "stacks.jsonl"
_MOST_ROWS = 500_000
_NAMES = tuple(column.name for column in STACKS.all_columns)


def keep_stacks(directory: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows of `stacks` to a run, all in one write; secrets in the names of threads, say, are masked."""
    told = (
        {name: redact(value) if isinstance(value := row.get(name), str) else value for name in _NAMES} for row in rows
    )
    text = "".join(json.dumps(row) + "\n" for row in told)
    try:
        append_file(directory / FILE, text.encode())
    except OSError as error:
        raise RecordingError(f"stacks are not kept in {directory}: {error.strerror}") from None


def read_stacks(directory: Path) -> list[dict[str, Any]]:
    """The first 500,000 rows that are whole; a torn one at the end, or anything else, is passed over."""
    try:
        lines = read_file(directory / FILE, LARGEST_LINES).split(b"\n", _MOST_ROWS)[:_MOST_ROWS]
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            rows.append({name: content.get(name) for name in _NAMES})
    return rows


def count_stacks(directory: Path) -> int:
    return len(read_stacks(directory))
