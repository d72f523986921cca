"""What every export shares: files that appear only when they are whole, progress, and what was written."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_LIMIT = 200_000  # rows of a table on a time line or in a series, before it is thinned


def no_progress(count: int, /) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an export wrote: `counts` by kind of thing, and in words what it left out or changed."""

    path: str
    counts: Mapping[str, int]
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place at the end of a good block.

    OSError if something other than a file is there: a device would be gone for everybody.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# One encoder for all: `json.dumps` would make a new one for every event.
compact_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
