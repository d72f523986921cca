"""Rows of the table of runs that outlive the server: a file in the user's cache, one for each directory of runs.

Whoever can write there is the user; still a damaged file is no more than an empty one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stethos import __version__
from stethos.record.border import make_directory, read_file
from stethos.record.place import write_json
from stethos.settings import cache_dir

_LARGEST = 64 << 20
_NEEDED = frozenset({"run", "state", "is_known", "health", "config", "tables"})


class KeptRows:
    """What was known of each run when a server ended, with the version of the run that it is about."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._rows = _read(file)

    @classmethod
    def of(cls, directory: Path) -> KeptRows:
        """Those of a directory of runs."""
        name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:24]
        return cls(cache_dir() / "tables" / f"{name}.json")

    def __contains__(self, run: str) -> bool:
        return run in self._rows

    def find(self, run: str, version: str) -> dict[str, Any] | None:
        """The row of a run, if it is about this version of it."""
        known = self._rows.get(run)
        return known[1] if known is not None and known[0] == version else None

    def write(self, rows: Mapping[str, tuple[str, dict[str, Any]]]) -> None:
        """Remember these; where nothing can be written, nothing is."""
        with contextlib.suppress(OSError):
            make_directory(self._file.parent)
            write_json(self._file, {"version": __version__, "rows": rows})


def _read(file: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    try:
        content = json.loads(read_file(file, _LARGEST))
        if content["version"] != __version__:
            return {}
        return {
            name: (version, row)
            for name, (version, row) in content["rows"].items()
            if isinstance(version, str) and isinstance(row, dict) and row.keys() >= _NEEDED
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
