"""The options that say which run, or which live processes, a command is about."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stethos.live.target import Target, no_gateway, resolve, take_apart
from stethos.store.find import find_run

if TYPE_CHECKING:
    from stethos.live.registry import LiveProcess
    from stethos.store.run import Run


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-t",
        "--target",
        metavar="TARGET",
        help="a run's name, its directory, or a pid; default: the newest live run, else the newest",
    )
    add_directory(parser)


def add_live_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-t",
        "--target",
        metavar="TARGET",
        help="a pid, a run's name or directory, RUN/rank:N or RUN/all; default: the newest live run",
    )
    add_directory(parser)


def add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", metavar="DIR", type=Path, help="where the runs are (default: ./runs)")


def open_target(arguments: argparse.Namespace) -> Run:
    """The run that the command line means; its live processes are looked at when a query names their stacks."""
    from stethos.store.run import Run

    run = Run(find_run(take_apart(arguments.target).run, arguments.dir))

    def capture() -> list[dict[str, object]]:
        from stethos.live.rows import captured_rows

        return captured_rows(resolve(arguments.target or str(run.path), arguments.dir).processes)

    run.capture = capture
    return run


def live_target(arguments: argparse.Namespace) -> Target:
    """The live processes that the command line means."""
    return no_gateway(resolve(arguments.target, arguments.dir))


def chosen_processes(arguments: argparse.Namespace) -> list[LiveProcess]:
    """Every process of an `all` target, else the one that a command for one is about."""
    target = live_target(arguments)
    return list(target.processes) if target.wanted.is_all and target.processes else [target.one()]
