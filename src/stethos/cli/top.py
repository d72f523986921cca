"""Watch a run in the terminal.

    stethos top
    stethos top -t RUN --once

It shows rounds, clients, steps, loss, processes, findings and overhead; clients that a finding accuses come first.
Keys: s sorts, r reverses, / filters, n and p go to other runs, space pauses, ? shows help, q or Ctrl-C quits. It stays
open when the run ends, and closes when the run is deleted. With --once, or without a terminal, it prints one frame.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stethos.cli.screen.jsontext import print_json
from stethos.cli.task.target import add_target, open_target
from stethos.errors import StethosError, UsageError

if TYPE_CHECKING:
    from stethos.cli.screen.top_keys import TopKeys
    from stethos.record.place import RunPlace
    from stethos.store.run import Run
    from stethos.view.vitals import Monitor

_PLAIN_WIDTH = 100
_SLOWEST_SHARE = 4  # looking takes at most a quarter of the time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (default: 1)")
    parser.add_argument("--once", action="store_true", help="print one frame and exit")
    parser.add_argument("--json", action="store_true", help="print one frame as JSON")


def run(arguments: argparse.Namespace) -> int:
    from stethos.view.vitals import Monitor

    if not 0.1 <= arguments.interval <= 3600:
        raise UsageError(f"--interval {arguments.interval:g} is out of range", hint="give 0.1 to 3600 seconds")
    with open_target(arguments) as one:
        monitor = Monitor(one)
        if arguments.json:
            print_json(dataclasses.asdict(monitor.look()))
            return 0
        if arguments.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print_once(monitor)
            return 0
        said = _watch(one, monitor, arguments.interval)
    if said:
        sys.stdout.write(said + "\n")
    return 0


def _print_once(monitor: Monitor) -> None:
    from rich.console import Console

    from stethos.cli.screen.top_view import draw

    is_terminal = sys.stdout.isatty()
    console = Console() if is_terminal else Console(width=_PLAIN_WIDTH, color_system=None, file=io.StringIO())
    console.print(draw(monitor.look(), console.width))
    if isinstance(console.file, io.StringIO):
        sys.stdout.write("\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n")


def _watch(first: Run, monitor: Monitor, interval_s: float) -> str:
    """Draw until a key says so, or the run is gone; what to say then."""
    from rich.console import Console
    from rich.live import Live

    from stethos.cli.screen.top_keys import TopKeys
    from stethos.cli.screen.top_view import draw, draw_help
    from stethos.store.run import Run
    from stethos.view.vitals import Monitor

    console, asked, run = Console(), TopKeys(), first
    vitals = None
    with _single_keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while not asked.is_over:
                began = time.monotonic()
                if asked.move:
                    place = _beside(run, asked.move)
                    if place is not None:
                        if run is not first:
                            run.close()
                        run, vitals = Run(place), None
                        monitor = Monitor(run)
                    asked = dataclasses.replace(asked, move=0)
                if vitals is None or not asked.is_paused:
                    monitor.client_order, monitor.is_reversed = asked.order, asked.is_reversed
                    monitor.wanted = asked.wanted
                    try:
                        vitals = monitor.look()
                    except (StethosError, OSError):
                        if run.place.exists():
                            raise
                    if not run.place.exists() or vitals is None:
                        return f"the run {run.path} has been deleted"
                width, height = console.width, console.height
                frame = draw_help(width) if asked.is_help else draw(vitals, width, height, asked.note, asked.wanted)
                live.update(frame, refresh=True)
                wait_s = max(interval_s, _SLOWEST_SHARE * (time.monotonic() - began))
                asked = _pressed_within(keys, asked, wait_s)
        except KeyboardInterrupt:
            return ""
        finally:
            if run is not first:
                run.close()
    return ""


def _beside(run: Run, move: int) -> RunPlace | None:
    """The run that is so many places after this one in its directory, newest first, round and round."""
    from stethos.store.find import list_runs

    places = list_runs(run.path.parent)
    here = next((number for number, place in enumerate(places) if place.name == run.place.name), None)
    return None if here is None or len(places) < 2 else places[(here + move) % len(places)]


@contextmanager
def _single_keys() -> Iterator[int]:
    """The keyboard's descriptor, keys arriving one by one and unseen; as it was afterwards."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _pressed_within(keys: int, asked: TopKeys, seconds: float) -> TopKeys:
    """Wait, or less if a key is pressed; what is asked for then. A terminal that has gone asks for the end."""
    from stethos.cli.screen.top_keys import press

    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([keys], [], [], left)[0]:
            pressed = os.read(keys, 64)
            after = press(asked, pressed.decode(errors="replace"))
            if not pressed or after.is_over:
                return dataclasses.replace(after, is_over=True)
            if after != asked:
                return after
    return asked
