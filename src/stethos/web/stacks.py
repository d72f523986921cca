"""Where the processes of a live run are right now, merged into one tree; taken when somebody asks for it."""

from __future__ import annotations

from typing import Any

from stethos.errors import StethosError
from stethos.live.registry import live_processes
from stethos.live.stack import ThreadStack, thread_stacks
from stethos.live.tree import merge, odd_ones
from stethos.record.place import RunPlace

MOST_PROCESSES = 64


def stacks_of(place: RunPlace) -> dict[str, Any]:
    """The stacks of a run's processes on this machine; why some could not be read, and who is not where most are."""
    processes = live_processes(place.path)
    stacks: dict[str, tuple[ThreadStack, ...]] = {}
    errors: dict[str, str] = {}
    for process in processes[:MOST_PROCESSES]:
        try:
            stacks[process.title] = thread_stacks(process.pid)
        except StethosError as error:
            errors[process.title] = str(error)
    root = merge(stacks)
    return {
        "tree": root.as_dict(),
        "odd": odd_ones(root),
        "errors": errors,
        "processes": len(processes),
        "left_out": max(0, len(processes) - MOST_PROCESSES),
    }
