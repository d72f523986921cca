"""JSON for scripts: plain ASCII, and no number that JSON does not have."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any


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


def jsonable(value: Any) -> Any:
    """The value as JSON has it: NaN and infinities become the strings "NaN", "Infinity" and "-Infinity"."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if math.isfinite(value):
                return value
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return value.hex()
        case Mapping():
            return {str(key): jsonable(item) for key, item in value.items()}
        case list() | tuple():
            return [jsonable(item) for item in value]
    return str(value)
