"""How much a query may take: a quarter of the machine's memory and half of what is free, since a training comes first.

DuckDB's own limit holds for what it keeps, not for every intermediate value. The limit of the process holds for both,
so a user's SQL runs in a process that may be limited: a command, or a process of its own (`store.asker`).
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from stethos.errors import QueryError

DEFAULT_TIMEOUT_S = 30.0
GRACE_S = 3.0  # for which a query may go on after it was told to stop: a function of SQL may not hear it
STUCK = "the query took too long and did not stop"
_LEAST_BYTES = 256 << 20
_OWN_BYTES = 512 << 20  # for Python, Arrow and DuckDB themselves
_CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")


def memory_bytes() -> int:
    """What one query may use now."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # `max`, or no control group
        total = min(total, int(_CONTROL_GROUP.read_text(encoding="ascii")))
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    with suppress(OSError, IndexError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    return max(_LEAST_BYTES, min(total // 4, available // 2))


def bound_memory(more_bytes: int | None = None) -> None:
    """Have this process fail with an error, not the machine, where it takes so much more memory than it has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data_bytes() + (more_bytes or memory_bytes()) + _OWN_BYTES
    if soft == resource.RLIM_INFINITY or limit < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def end_command() -> NoReturn:
    """End a command whose query does not hear that it is to stop."""
    sys.stderr.write(f"{STUCK}\n")
    sys.stderr.flush()
    os._exit(QueryError.exit_code)


def _data_bytes() -> int:
    with suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * os.sysconf("SC_PAGE_SIZE")
    return 0
