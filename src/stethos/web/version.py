"""Whether a run has changed, told from its files alone: cheap enough to ask many times a second."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from stethos.store.findings import FILE as FINDINGS_FILE
from stethos.store.stack_file import FILE as STACKS_FILE

# A ring's content changes without its size; what counts is what has been collected from it.
_LEFT_OUT = ("ring",)


def version_of(run: Path, *, with_findings: bool = True) -> str:
    """A text that differs whenever readable rows, the state or (with `with_findings`) the findings of a run do.

    OSError if the run is gone.
    """
    parts: list[str] = []
    for entry in os.scandir(run):
        if entry.is_dir():
            parts += _files(entry.path)
        elif (
            entry.name.startswith("launcher-")
            or entry.name in ("run.json", STACKS_FILE)
            or (with_findings and entry.name.startswith(FINDINGS_FILE) and not entry.name.endswith("-shm"))
        ):
            parts.append(_mark(entry))
    return f"{zlib.crc32('|'.join(sorted(parts)).encode('utf-8', 'surrogateescape')):08x}"


def findings_time_ns(run: Path) -> int:
    """When the findings of a run were last written; 0 where there are none."""
    times = [0]
    base = f"{run}{os.sep}{FINDINGS_FILE}"  # a thousand runs are asked about at a time
    for path in (base, f"{base}-wal"):
        try:
            times.append(os.lstat(path).st_mtime_ns)
        except OSError:
            continue
    return max(times)


def _files(directory: str) -> list[str]:
    try:
        return [
            _mark(entry)
            for entry in os.scandir(directory)
            if entry.name not in _LEFT_OUT and not entry.name.startswith(".")
        ]
    except OSError:  # retired meanwhile
        return [directory]


def _mark(entry: os.DirEntry[str]) -> str:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return entry.path
    return f"{entry.path}:{found.st_size}:{found.st_mtime_ns}"
