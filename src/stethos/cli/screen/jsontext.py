"""JSON for scripts: plain ASCII, and no number that JSON does not have."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stethos.view.plain import jsonable

_PLAIN = {type(None), bool, int, float, str}  # one line each as JSON
_AT_ONCE = 10_000  # rows: their texts are in memory together


def print_json(content: Any) -> None:
    """Print one document."""
    sys.stdout.write(json.dumps(jsonable(content), indent=2) + "\n")


def print_json_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print one array, an object per line."""
    write = sys.stdout.write
    write("[")
    separator = "\n"
    for row in rows:
        write(separator + json.dumps(jsonable(row)))
        separator = ",\n"
    write("\n]\n" if separator != "\n" else "]\n")


def print_json_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print what `print_json_rows` prints of rows that have all these columns, a column at a time: ten times faster."""
    if not rows or not columns:
        print_json_rows(dict(zip(columns, row, strict=True)) for row in rows)
        return
    line = "{" + ", ".join(json.dumps(name).replace("%", "%%") + ": %s" for name in columns) + "}"
    write = sys.stdout.write
    write("[\n")
    for first in range(0, len(rows), _AT_ONCE):
        some = rows[first : first + _AT_ONCE]
        texts = zip(*map(_json_texts, zip(*some, strict=True)), strict=True)
        write((",\n" if first else "") + ",\n".join(line % text for text in texts))
    write("\n]\n")


def _json_texts(values: Sequence[Any]) -> list[str]:
    """Each value of a column as JSON."""
    if set(map(type, values)) <= _PLAIN:
        try:
            return json.dumps(values, allow_nan=False, separators=("\n", ":"))[1:-1].split("\n")
        except ValueError:  # NaN or an infinity
            pass
    return [json.dumps(jsonable(value)) for value in values]
