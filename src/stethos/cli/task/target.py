"""The options that say which run, or which live processes, a command is about."""

from __future__ import annotations

import argparse
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from stethos.cli.screen.text import clean
from stethos.live.target import Target, no_gateway, resolve, take_apart
from stethos.record.place import RunPlace
from stethos.settings import default_runs_dir
from stethos.store.find import find_run

if TYPE_CHECKING:
    from stethos.live.registry import LiveProcess
    from stethos.store.run import Run


_LONGEST_S = 300.0
_LOOK_EACH_S = 0.5


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-t",
        "--target",
        metavar="TARGET",
        help="a run's name, its directory, or a pid; default: the newest live run in ./runs, else the newest there",
    )
    add_anywhere(parser)
    add_directory(parser)


def add_live_target(parser: argparse.ArgumentParser) -> None:
    """A target of a command that may act; it has no `--anywhere`, so that nothing elsewhere is changed unnamed."""
    parser.add_argument(
        "-t",
        "--target",
        metavar="TARGET",
        help="a pid, a run's name or directory, RUN/rank:N or RUN/all; default: the newest live run in ./runs",
    )
    add_directory(parser)


def add_anywhere(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--anywhere", action="store_true", help="without -t: also take a live run of yours in another directory"
    )


def add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", metavar="DIR", type=Path, help="where the runs are (default: ./runs)")


def open_target(arguments: argparse.Namespace, *, is_replayed: bool = False) -> Run:
    """The run that the command line means; its live processes are looked at when a query names their stacks.

    A run that was not recorded here may take so much of the processor's time, unless training `is_replayed`.
    """
    from stethos.store.limit import bound_memory, end_command, memory_bytes
    from stethos.store.run import Run

    bound_memory(2 * memory_bytes())  # whatever the run makes us read
    anywhere = getattr(arguments, "anywhere", False)
    place = find_run(take_apart(arguments.target).run, arguments.dir, anywhere=anywhere)
    run = Run(place, when_stuck=end_command)
    if not is_replayed and not run.place.is_ours():
        _end_in_time(run)
    _say_where(arguments, run.place)

    def live_stacks() -> list[dict[str, object]]:
        from stethos.live.rows import live_stack_rows

        return live_stack_rows(resolve(arguments.target or str(run.path), arguments.dir).processes)

    run.live_stacks = live_stacks
    return run


def _end_in_time(run: Run) -> None:
    """End the command if it computes for minutes: a stranger may have made rows for just that."""
    from stethos.store.limit import end_command

    known, ends_s = weakref.ref(run), time.process_time() + _LONGEST_S

    def watch() -> None:
        while known() is not None:
            if time.process_time() > ends_s:
                end_command(f"a run that was not recorded here took more than {_LONGEST_S:g} s of the processor's time")
            time.sleep(_LOOK_EACH_S)

    threading.Thread(target=watch, daemon=True).start()


def _say_where(arguments: argparse.Namespace, run: RunPlace) -> None:
    """Name the directory of a run that was not named by its own and is not in `./runs`."""
    is_named = arguments.dir or (arguments.target and ("://" in arguments.target or Path(arguments.target).exists()))
    if not is_named and not getattr(arguments, "json", False):
        directory = run.path.resolve().parent
        if directory != default_runs_dir().resolve():
            sys.stderr.write(f"run {clean(run.name)} of {clean(str(directory))}\n")


def live_target(arguments: argparse.Namespace) -> Target:
    """The live processes that the command line means."""
    target = no_gateway(resolve(arguments.target, arguments.dir, anywhere=getattr(arguments, "anywhere", False)))
    if target.run is not None:
        _say_where(arguments, target.run)
    return target


def chosen_processes(arguments: argparse.Namespace) -> list[LiveProcess]:
    """Every process of an `all` target, else the one that a command for one is about."""
    target = live_target(arguments)
    return list(target.processes) if target.wanted.is_all and target.processes else [target.one()]
