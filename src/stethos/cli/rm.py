"""Delete a run, here or in an archive (`stethos rm s3://BUCKET/PATH/RUN`).

It asks first on a terminal; elsewhere it needs --yes. It refuses a run that is still going unless --running is given.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stethos.cli.screen.text import bytes_text, clean
from stethos.cli.task.target import add_directory
from stethos.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="RUN", nargs="?", help="the run's name, its directory, its address in an archive, or a pid"
    )
    add_directory(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--running", action="store_true", help="also delete a run that is still going; its recording ends"
    )
    parser.add_argument("--force", action="store_true", dest="running", help=argparse.SUPPRESS)  # its old name


def run(arguments: argparse.Namespace) -> int:
    from stethos.store.catalogue import size_of
    from stethos.store.deletion import delete_run
    from stethos.store.find import ARCHIVED_MARK, find_run, is_live

    if arguments.target is None:
        raise UsageError("which run?", hint="list runs with `stethos ls`, then `stethos rm RUN`")
    if "://" in arguments.target or (Path(arguments.target) / ARCHIVED_MARK).is_dir():
        return _remove_archived(arguments)
    place = find_run(arguments.target, arguments.dir)
    if is_live(place) and not arguments.running:
        raise UsageError(f"{place.name} is still going", hint="wait for it to end, or use --running")
    what = f"{clean(place.name)} ({bytes_text(size_of(place.path))})"
    if not _is_wanted(arguments, what):
        return 1
    delete_run(place.path)
    print(f"deleted {what}")
    return 0


def _remove_archived(arguments: argparse.Namespace) -> int:
    from stethos.archive.address import parse_address
    from stethos.archive.maintain import remove_run

    address = parse_address(arguments.target)
    if not _is_wanted(arguments, clean(str(address))):
        return 1
    left = remove_run(address)
    print(f"deleted {clean(str(address))}")
    if left:
        sys.stderr.write(f"{left:,} other files are there, which Stethos has not made: they were left\n")
    return 0


def _is_wanted(arguments: argparse.Namespace, what: str) -> bool:
    """Ask, unless --yes has answered."""
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"not deleting {what} without a yes", hint="use --yes")
    is_yes = input(f"delete {what}? [y/N] ").strip().lower() in ("y", "yes")
    if not is_yes:
        print("kept")
    return is_yes
