"""Stacks of live processes as rows of the table `stacks`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from stethos.errors import StethosError
from stethos.live.registry import LiveProcess
from stethos.live.stack import ThreadStack, thread_stacks

NOW = "now"


def stack_rows(process: LiveProcess, threads: Sequence[ThreadStack], t_ns: int, reason: str) -> list[dict[str, Any]]:
    """One process's threads as rows; a main thread is called MainThread whatever it calls itself."""
    return [
        {
            "t_ns": t_ns,
            "reason": reason,
            "process": process.process,
            "rank": process.rank,
            "thread": "MainThread" if stack.is_main else stack.thread,
            "depth": depth,
            "func": frame.func,
            "file": frame.file,
            "lineno": frame.lineno or None,
            "frame_type": "Native" if frame.is_native else "Python",
            "ip": None,
        }
        for stack in threads
        for depth, frame in enumerate(stack.frames)
    ]


def live_stack_rows(processes: Sequence[LiveProcess]) -> list[dict[str, Any]]:
    """Where these processes are now; the error of one is raised if none could be read."""
    rows: list[dict[str, Any]] = []
    trouble: StethosError | None = None
    for process in processes:
        try:
            rows += stack_rows(process, thread_stacks(process.pid), time.time_ns(), NOW)
        except StethosError as error:  # it may be another user's, or have ended this very moment
            trouble = error
    if trouble is not None and not rows:
        raise trouble
    return rows
