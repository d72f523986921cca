"""JSON for scripts: plain ASCII, and no number that JSON does not have."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from stethos.view.plain import jsonable


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
