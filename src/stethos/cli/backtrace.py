"""Show where a live process is: every thread, the line it is at, innermost frame first.

    stethos backtrace
    stethos 4711 backtrace --native

py-spy reads the stacks from outside, so a process that hangs, holds the GIL or sits in C is seen too, and is not
disturbed. Any Python process will do, also one that is not observed. --native adds the frames of C and C++. That stops
the process while its symbols are looked up, 50 to 600 ms with torch: use it on one that hangs, or where a pause does
not matter.

    stethos all backtrace

With several ranks, the stacks are merged into one tree that shows which ranks are where, and which one differs.
--full shows every thread of every rank instead.
"""

from __future__ import annotations

import argparse
import linecache
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean
from stethos.cli.task.target import add_anywhere, add_live_target, live_target
from stethos.errors import StethosError
from stethos.live.stack import StackFrame, ThreadStack, thread_stacks

if TYPE_CHECKING:
    from stethos.live.registry import LiveProcess
    from stethos.live.target import Target

_LONGEST_LINE = 100
_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|lib(?:64)?/python3\.\d+)/")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_live_target(parser)
    add_anywhere(parser)
    parser.add_argument(
        "--native", action="store_true", help="show frames of C and C++ too; stops the process for 50 to 600 ms"
    )
    parser.add_argument("--full", action="store_true", help="with several processes: every thread instead of one tree")
    parser.add_argument("--json", action="store_true", help="print one array of threads; with `all` an object")


def run(arguments: argparse.Namespace) -> int:
    target = live_target(arguments)
    ordered = sorted(target.processes, key=lambda one: (one.rank is None, one.rank or 0))  # what started the ranks last
    wanted: list[tuple[int, LiveProcess | None]] = [(process.pid, process) for process in ordered]
    if target.pid is not None:
        wanted = [one for one in wanted if one[0] == target.pid] or [(target.pid, None)]
    elif not wanted:
        target.one()  # says that nobody is alive
    found: list[tuple[int, LiveProcess | None, tuple[ThreadStack, ...]]] = []
    trouble: StethosError | None = None
    for pid, process in wanted:
        try:
            found.append((pid, process, thread_stacks(pid, native=arguments.native)))
        except StethosError as error:
            if len(wanted) == 1:
                raise
            trouble = error
            sys.stderr.write(clean(str(error), keep_lines=True) + "\n")
    if target.wanted.is_all:
        show_ranks(target, found, arguments)
    elif arguments.json:
        print_json([_thread_row(pid, process, stack) for pid, process, stacks in found for stack in stacks])
    else:
        for pid, process, stacks in found:
            sys.stdout.write("\n".join(_lines(pid, process, stacks)) + "\n")
    return trouble.exit_code if trouble is not None else 0


def show_ranks(
    target: Target, found: list[tuple[int, LiveProcess | None, tuple[ThreadStack, ...]]], arguments: argparse.Namespace
) -> None:
    """The stacks of all ranks as one tree, who differs, and who is not there."""
    from stethos.live.all_ranks import missing_ranks
    from stethos.live.tree import merge, odd_ones, tree_lines

    ranked = all(process is not None and process.rank is not None for _, process, _ in found)
    named = {
        str(process.rank) if ranked and process is not None else f"pid {pid}": stacks for pid, process, stacks in found
    }
    root, missing = merge(named), missing_ranks(target.run, target.processes)
    odd = odd_ones(root)
    if arguments.json:
        threads = [_thread_row(pid, process, stack) for pid, process, stacks in found for stack in stacks]
        print_json({"tree": root.as_dict(), "differ": odd, "missing": missing, "threads": threads})
        return
    lines = tree_lines(root)
    if arguments.full:
        lines = [line for pid, process, stacks in found for line in _lines(pid, process, stacks)]
    title = "rank " if ranked else ""
    lines += [f"{title}{name} is not where most are: {place}" for name, place in odd.items()]
    lines += [f"rank {rank} is missing: it {why}" for rank, why in missing.items()]
    sys.stdout.write("\n".join(clean(line) for line in lines) + "\n")


def _lines(pid: int, process: LiveProcess | None, stacks: tuple[ThreadStack, ...]) -> list[str]:
    of = f" of {process.run}" if process is not None else ""
    rank = f", rank {process.rank}" if process is not None and process.rank is not None else ""
    lines = [f"process {pid}{of}{rank}"]
    if any(stack.source == "agent" for stack in stacks):
        lines[0] += " (as seen by the agent in the process: this user may not look from outside)"
    for stack in stacks:
        notes = [*(["has the GIL"] if stack.has_gil else []), *(["waits"] if stack.is_idle else [])]
        lines.append(f"{clean(stack.thread)}{' (' + ', '.join(notes) + ')' if notes else ''}")
        frames = [frame for frame in stack.frames if not frame.file.startswith("<frozen importlib")]
        places = [_place(frame) for frame in frames]
        width = min(60, max(map(len, places), default=0))
        for place, frame in zip(places, frames, strict=True):
            lines.append(f"  {place:{width}}  {clean(frame.func)}{_source(frame)}".rstrip())
    return [clean(line) for line in lines]


def _place(frame: StackFrame) -> str:
    path = os.path.normpath(frame.file) if os.path.isabs(frame.file) else frame.file
    inside = os.path.relpath(path) if os.path.isabs(path) else path
    shown = inside if not inside.startswith("..") else path
    library = _LIBRARY.search(path)
    if library is not None:  # of a library what it is, not where it was installed: one's own lines are to stand out
        shown = path[library.end() :]
    return f"{clean(shown)}:{frame.lineno}" if frame.lineno else clean(shown)


def _source(frame: StackFrame) -> str:
    """The line of source itself, where the file is at hand."""
    line = linecache.getline(frame.file, frame.lineno).strip() if frame.lineno and not frame.is_native else ""
    return f"    {clean(line)[:_LONGEST_LINE]}" if line else ""


def _thread_row(pid: int, process: LiveProcess | None, stack: ThreadStack) -> dict[str, Any]:
    return {
        "pid": pid,
        "run": process.run if process is not None else None,
        "rank": process.rank if process is not None else None,
        "thread": stack.thread,
        "os_thread_id": stack.os_thread_id,
        "is_main": stack.is_main,
        "has_gil": stack.has_gil,
        "is_idle": stack.is_idle,
        "source": stack.source,
        "frames": [
            {"func": frame.func, "file": frame.file, "lineno": frame.lineno or None, "is_native": frame.is_native}
            for frame in stack.frames
        ],
    }
