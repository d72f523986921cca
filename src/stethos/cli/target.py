"""The options that say which run a command is about."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stethos.store.find import find_run

if TYPE_CHECKING:
    from stethos.store.run import Run


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-t", "--target", metavar="TARGET", help="a run's name, its directory, or a pid; default: the newest live run, else the newest")  # fmt: skip  # noqa: E501
    add_directory(parser)


def add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", metavar="DIR", type=Path, help="where the runs are (default: ./runs)")


def open_target(arguments: argparse.Namespace) -> Run:
    """The run that the command line means."""
    from stethos.store.run import Run

    return Run(find_run(arguments.target, arguments.dir))
