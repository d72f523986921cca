"""Wall-clock time that never runs backwards within a process.

Durations use `perf_counter_ns`; times are that counter plus an offset taken
once, so that a step of the system clock cannot reorder rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable

monotonic_ns: Callable[[], int] = time.perf_counter_ns


def wall_offset_ns() -> int:
    """What to add to `monotonic_ns()` to get wall-clock time."""
    return time.time_ns() - monotonic_ns()
