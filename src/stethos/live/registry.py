"""Which observed processes of this user are alive on this machine.

Every recording process keeps a file named by its pid in the registry
directory (0700), which points to its directory in a run; beside it lies the
socket of its agent. A file that a killed process left behind is known by the
pid and the start time of its process. Standard library only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from stethos.record.place import ProcessPlace, RunPlace, host_key, is_alive, registered_place
from stethos.settings import registry_dir


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """An observed process that runs now. Its agent may still be missing: see `has_agent`."""

    pid: int
    start_ticks: int | None
    run: str
    run_dir: Path
    process: str
    rank: int | None
    world_size: int | None
    host: str
    socket: Path
    since_ns: int

    @property
    def place(self) -> ProcessPlace:
        return ProcessPlace(self.run_dir / self.process)

    @property
    def has_agent(self) -> bool:
        return self.socket.is_socket()

    @property
    def title(self) -> str:
        """`rank 3` or `pid 4711`: what a reader calls it."""
        return f"rank {self.rank}" if self.rank is not None else f"pid {self.pid}"


def socket_path(pid: int) -> Path:
    """Where the agent of a process listens."""
    return registry_dir() / f"{pid}.sock"


def live_processes(directory: Path | None = None) -> list[LiveProcess]:
    """Every observed process that is alive, oldest first; with `directory` only those of runs in it (or of that run).

    Entries that are not this user's, or whose process has ended, are passed over.
    """
    try:
        entries = [entry.name for entry in os.scandir(registry_dir()) if entry.name.isdecimal()]
    except OSError:
        return []
    found = [live_process(int(name)) for name in entries]
    wanted = Path(os.path.realpath(directory)) if directory is not None else None
    kept = [one for one in found if one is not None and (wanted is None or wanted in (one.run_dir, one.run_dir.parent))]
    return sorted(kept, key=lambda one: (one.since_ns, one.pid))


def live_process(pid: int) -> LiveProcess | None:
    """The observed process with this pid, if it is alive and this user's."""
    place = registered_place(registry_dir() / str(pid))
    if place is None:
        return None
    facts = place.facts()
    if facts.get("pid") != pid or facts.get("host_key") != host_key() or not is_alive(pid, facts.get("start_ticks")):
        return None
    run = RunPlace(place.path.parent)
    return LiveProcess(
        pid=pid,
        start_ticks=facts.get("start_ticks"),
        run=str(run.facts().get("run") or run.name),
        run_dir=run.path,
        process=place.name,
        rank=facts.get("rank"),
        world_size=facts.get("world_size"),
        host=str(facts.get("host") or ""),
        socket=socket_path(pid),
        since_ns=int(facts.get("started_ns") or 0),
    )
