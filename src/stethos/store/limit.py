"""How much a query may take: a quarter of the machine's memory and half of what is free, since a training comes first.

DuckDB's own limit holds for what it keeps, not for every intermediate value. The limit of the process holds for both,
so a user's SQL runs in a process that may be limited: a command, or a process of its own (`store.asker`).
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from stethos.errors import QueryError

DEFAULT_TIMEOUT_S = 30.0
GRACE_S = 3.0  # for which a query may go on after it was told to stop: a function of SQL may not hear it
STUCK = "the query took too long and did not stop"
_LEAST_BYTES = 256 << 20
_OWN_BYTES = 512 << 20  # for Python, Arrow and DuckDB themselves
_CONTROL_GROUPS, _OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_KEPT_IN = {  # by what `_OWN_GROUP` calls them: newer ones, older ones
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def memory_bytes() -> int:
    """What one query may use now."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    with suppress(OSError, IndexError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    for limit, used in _control_groups():  # a container's training would be killed by what its neighbours have free
        total, available = min(total, limit), min(available, max(0, limit - used))
    return max(_LEAST_BYTES, min(total // 4, available // 2))


def _control_groups() -> Iterator[tuple[int, int]]:
    """The limit of each control group that this process is in, and what is in use there beside files read before."""
    with suppress(OSError):
        for line in _OWN_GROUP.read_text(encoding="utf-8", errors="replace").splitlines():
            kinds, _, own = line.partition(":")[2].partition(":")
            if kinds in _KEPT_IN:
                top, most, now, cached = _KEPT_IN[kinds]
                for group in (place := _CONTROL_GROUPS / top / own.strip("/"), *place.parents):
                    if group.is_relative_to(_CONTROL_GROUPS / top):
                        with suppress(OSError, ValueError, StopIteration):  # `max`, or none
                            about = (group / "memory.stat").read_text(encoding="ascii").splitlines()
                            files = int(next(line.split()[1] for line in about if line.startswith(f"{cached} ")))
                            yield _number_in(group / most), _number_in(group / now) - files


def _number_in(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


def bound_memory(more_bytes: int | None = None) -> None:
    """Have this process fail with an error, not the machine, where it takes so much more memory than it has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data_bytes() + (more_bytes or memory_bytes()) + _OWN_BYTES
    if soft == resource.RLIM_INFINITY or limit < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def end_command(why: str = STUCK) -> NoReturn:
    """End a command that does not hear that it is to stop, as a query may not."""
    sys.stderr.write(f"{why}\n")
    sys.stderr.flush()
    os._exit(QueryError.exit_code)


def _data_bytes() -> int:
    with suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * os.sysconf("SC_PAGE_SIZE")
    return 0
