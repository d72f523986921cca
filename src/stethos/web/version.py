"""Whether a run has changed, told from its files alone: cheap enough to ask many times a second."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import NamedTuple

from stethos.store.find import ARCHIVE_SOURCE
from stethos.store.findings import FILE as FINDINGS_FILE
from stethos.store.stack_file import FILE as STACKS_FILE

# A ring's content changes without its size; what counts is what has been collected from it.
_LEFT_OUT = ("ring",)


class Version(NamedTuple):
    """How a run's files are: a text that differs whenever they do, the same without the findings, and their number."""

    text: str
    rows: str
    files: int


def version_of(run: Path, *, with_findings: bool = True) -> str:
    """A text that differs whenever readable rows, the state or (with `with_findings`) the findings of a run do.

    It is the same by whatever path the run is reached.

    OSError if the run is gone.
    """
    seen = look_at(run)
    return seen.text if with_findings else seen.rows


def look_at(run: Path) -> Version:
    """The version of a run; its files are looked at once. OSError if the run is gone.

    Parquet files of an archived run come when they are asked for, which changes nothing of it: its manifests count.
    """
    parts: list[str] = []
    findings: list[str] = []
    with os.scandir(run) as found:
        entries = [*found]
    left_out = ".parquet" if any(entry.name == ARCHIVE_SOURCE for entry in entries) else None
    for entry in entries:
        if entry.is_dir():
            parts += _files(entry.path, entry.name, left_out)
        elif entry.name.startswith("launcher-") or entry.name in ("run.json", STACKS_FILE):
            parts.append(_mark(entry))
        elif entry.name.startswith(FINDINGS_FILE) and not entry.name.endswith("-shm"):
            findings.append(_mark(entry))
    return Version(_sum_of(parts + findings), _sum_of(parts), len(parts))


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


def _sum_of(parts: list[str]) -> str:
    return f"{zlib.crc32('|'.join(sorted(parts)).encode('utf-8', 'surrogateescape')):08x}"


def _files(directory: str, name: str, ending: str | None) -> list[str]:
    """The files of a process, without those that have this ending."""
    try:
        with os.scandir(directory) as found:
            return [
                f"{name}/{_mark(entry)}"
                for entry in found
                if entry.name not in _LEFT_OUT
                and not entry.name.startswith(".")
                and not (ending is not None and entry.name.endswith(ending))
            ]
    except OSError:  # retired meanwhile
        return [name]


def _mark(entry: os.DirEntry[str]) -> str:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return entry.name
    return f"{entry.name}:{found.st_size}:{found.st_mtime_ns}"
