"""Directories with all that is below them, which a stranger may have nested thousands deep."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_DEEPEST = 32  # directories inside each other; ours are five


def files_below(directory: Path) -> Iterator[tuple[Path, list[str]]]:
    """The directories from this one on, each with the names of its files; links are not followed.

    What lies deeper than anything of ours is passed over: a stranger may have nested thousands of directories, which
    `os.walk` does not survive.
    """
    waiting = [(directory, 0)]
    while waiting:
        place, depth = waiting.pop()
        try:
            with os.scandir(place) as entries:
                known = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError:
            continue
        yield place, [name for name, is_directory in known if not is_directory]
        if depth < _DEEPEST:
            waiting += [(place / name, depth + 1) for name, is_directory in reversed(known) if is_directory]


def remove_directory(path: Path) -> None:
    """Delete a directory with all that is in it, however deep; links in it are deleted, not followed."""
    try:
        shutil.rmtree(path)
    except RecursionError:
        waiting, count = [path], 0
        while waiting:
            place = waiting.pop()
            with os.scandir(place) as entries:
                found = [(Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in entries]
            for one, is_directory in found:
                if not is_directory:
                    one.unlink()
                elif place != path:  # up to the top, so that no path grows long
                    count += 1
                    waiting.append(one.rename(path / f"{count}.{os.getpid()}.moved"))
                else:
                    waiting.append(one)
            if place != path:
                place.rmdir()
        path.rmdir()
