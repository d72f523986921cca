"""Delete a run.

Asks first on a terminal; elsewhere it needs --yes. A run that is still going is refused without --force.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from stethos.cli.target import add_directory
from stethos.cli.text import bytes_text, clean
from stethos.errors import RecordingError, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="RUN", nargs="?", help="the run's name, its directory, or a pid")
    add_directory(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--force", action="store_true", help="also a run that is still going; it stops being recorded")


def run(arguments: argparse.Namespace) -> int:
    from stethos.store.catalogue import size_of
    from stethos.store.find import find_run, is_live

    if arguments.target is None:
        raise UsageError("which run?", hint="list runs with `stethos ls`, then `stethos rm RUN`")
    place = find_run(arguments.target, arguments.dir)
    if is_live(place) and not arguments.force:
        raise UsageError(f"{place.name} is still going", hint="wait for it to end, or use --force")
    name, size = clean(place.name), bytes_text(size_of(place.path))
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise UsageError(f"not deleting {name} ({size}) without a yes", hint="use --yes")
        if input(f"delete {name} ({size})? [y/N] ").strip().lower() not in ("y", "yes"):
            print("kept")
            return 1
    _delete(place.path)
    print(f"deleted {name} ({size})")
    return 0


def _delete(path: Path) -> None:
    """Move the directory aside, so that it is gone at once for everybody, then delete it; a link only itself."""
    try:
        if path.is_symlink():
            path.unlink()
            return
        doomed = path.with_name(f".{path.name}.deleted-{os.getpid()}")
        path.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        raise RecordingError(f"cannot delete {path}: {error.strerror or error}", hint="check its permissions") from None
