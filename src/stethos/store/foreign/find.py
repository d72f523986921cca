"""Finds what can be imported in a file or directory, and what the runs are called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from stethos.record.directories import files_below
from stethos.store.foreign.event_file import read_events
from stethos.store.foreign.value import Damage, Logged
from stethos.store.foreign.wandb_file import read_wandb

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_FILES = 100_000


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """The files that become one run: those of one directory."""

    name: str
    directory: Path
    files: tuple[Path, ...]

    def read(self, damage: Damage) -> Iterator[Logged]:
        """What they say, one file after the other; one that cannot be opened counts as damaged."""
        return chain.from_iterable(self._read(file, damage) for file in self.files)

    @staticmethod
    def _read(file: Path, damage: Damage) -> Iterator[Logged]:
        try:
            yield from (read_wandb if file.suffix == ".wandb" else read_events)(file, damage)
        except OSError:
            damage.records += 1


def foreign_runs(path: Path) -> list[ForeignRun]:
    """Event files of TensorBoard and offline runs of W&B, by directory; links are not followed."""
    if path.is_file():
        return [ForeignRun(_name_of(path.parent, path.parent), path.parent, (path,))]
    found: dict[Path, list[Path]] = {}
    count = 0
    for place, files in files_below(path):
        for file in files:
            if ".tfevents." in file or file.endswith(".wandb"):
                found.setdefault(place, []).append(place / file)
                count += 1
        if count > _MOST_FILES:
            break
    return [ForeignRun(_name_of(place, path), place, tuple(files)) for place, files in found.items()]


def _name_of(directory: Path, top: Path) -> str:
    """A run's name made of the directories below the one that was named."""
    resolved = directory.resolve()
    below = resolved.relative_to(top.resolve()).parts if directory != top else ()
    text = "-".join(below) or resolved.name
    return (_UNSAFE.sub("-", text).strip("-._") or "imported")[:100]
