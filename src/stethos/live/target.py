"""From what a user types to the live processes that are meant.

RUN, DIRECTORY, PID       a run, or one process
RUN/rank:3, RUN/all       one rank, or every process
rank:3, all               of the newest live run in this directory's ./runs
HOST:PORT[/...]           behind a gateway
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stethos.errors import LiveError, RunNotFoundError, UsageError
from stethos.live.registry import LiveProcess, live_process, live_processes
from stethos.record.place import RunPlace, start_ticks
from stethos.store.find import elsewhere_hint, find_run
from stethos.store.header import read_header

_SELECTOR = re.compile(r"(?:(?P<run>.*)/)?(?:(?P<all>all)|rank:(?P<rank>\d+))")
_GATEWAY = re.compile(r"(?P<address>(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):\d{1,5})(?:/(?P<rest>.*))?")


@dataclass(frozen=True, slots=True)
class ParsedTarget:
    """A target as it was typed, taken apart: the run's part, which ranks, and the gateway to go through."""

    run: str | None = None
    rank: int | None = None
    is_all: bool = False
    gateway: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What a target means now. `pid` is set where one process was named, which need not be observed."""

    wanted: ParsedTarget
    run: RunPlace | None
    processes: tuple[LiveProcess, ...]
    pid: int | None = None

    def one(self) -> LiveProcess:
        """The process that a command for one is about: rank 0, else the one with the most steps."""
        if not self.processes:
            raise self._nobody()
        ranked = [process for process in self.processes if process.rank is not None]
        if ranked:
            return min(ranked, key=lambda process: process.rank or 0)
        return max(self.processes, key=lambda process: (steps_of(process), -process.since_ns))

    def _nobody(self) -> LiveError:
        if self.pid is not None:
            return LiveError(
                f"process {self.pid} is not observed",
                hint=f"`stethos attach {self.pid}` begins to; `stethos {self.pid} backtrace` works without",
            )
        name = self.run.name if self.run is not None else "run"
        which = f" with rank {self.wanted.rank}" if self.wanted.rank is not None else ""
        elsewhere = elsewhere_hint(self.run.path.parent) if self.run is not None and self.wanted.run is None else ""
        return LiveError(f"no process of {name}{which} is alive", hint=elsewhere or "`stethos ls` lists what is alive")


def take_apart(text: str | None) -> ParsedTarget:
    """A target as typed; nothing is looked up but whether it is a directory."""
    if text is None:
        return ParsedTarget()
    selected = _SELECTOR.fullmatch(text)
    gateway = _GATEWAY.fullmatch(text)
    if gateway is not None and not text.startswith("rank:") and not Path(text).exists():
        inner = take_apart(gateway["rest"] or None)
        return ParsedTarget(inner.run, inner.rank, inner.is_all, gateway["address"])
    if selected is None or ("/" in text and Path(text).is_dir()):  # a run may be called "all"
        return ParsedTarget(text)
    rank = selected["rank"]
    return ParsedTarget(selected["run"] or None, int(rank) if rank is not None else None, selected["all"] is not None)


def gateway_of(text: str) -> tuple[str | None, str | None]:
    """The address of the gateway in a target, and the target behind it."""
    found = _GATEWAY.fullmatch(text)
    if found is None or text.startswith("rank:") or Path(text).exists():
        return None, text
    return found["address"], found["rest"] or None


def resolve(text: str | None, directory: Path | None = None, *, anywhere: bool = False) -> Target:
    """The processes a target means; RunNotFoundError if it names nothing.

    Without one the newest live run of `directory` (default: `./runs`), or with `anywhere` of this user. A run that is
    over has no processes, and that is no error here. A target behind a gateway is not looked up: its `wanted.gateway`
    says where to ask.
    """
    wanted = take_apart(text)
    if wanted.gateway is not None:
        return Target(wanted, None, ())
    if wanted.run is not None and wanted.run.isdecimal() and not wanted.is_all and wanted.rank is None:
        return _with_pid(wanted, int(wanted.run), directory)
    run = find_run(wanted.run, directory, anywhere=anywhere)
    found = live_processes(run.path)
    if wanted.is_all:  # of a distributed job its ranks; what started them is no part of it
        ranked = [process for process in found if process.rank is not None]
        found = sorted(ranked, key=lambda process: process.rank or 0) or found
    if wanted.rank is not None:
        found = [process for process in found if process.rank == wanted.rank]
        if not found:
            raise LiveError(
                f"no process of {run.name} with rank {wanted.rank} is alive", hint="`stethos ls` lists what is alive"
            )
    return Target(wanted, run, tuple(found))


def _with_pid(wanted: ParsedTarget, pid: int, directory: Path | None) -> Target:
    process = live_process(pid)
    if process is not None:
        return Target(wanted, RunPlace(process.run_dir), (process,), pid)
    try:
        run = find_run(str(pid), directory)
    except RunNotFoundError:
        if start_ticks(pid) is None:
            raise RunNotFoundError(f"no run and no live process {pid}", hint="list runs with `stethos ls`") from None
        return Target(wanted, None, (), pid)
    return Target(wanted, run, tuple(live_processes(run.path)), pid if start_ticks(pid) is not None else None)


def steps_of(process: LiveProcess) -> int:
    """Its optimizer steps, from the ring; the process is not asked."""
    header = read_header(process.place.ring())
    return header.counters.steps if header is not None else 0


def no_gateway(target: Target) -> Target:
    """The target, or UsageError if it lies behind a gateway and the command cannot go there."""
    if target.wanted.gateway is not None:
        raise UsageError(f"{target.wanted.gateway} is a gateway, and this command works on this machine only")
    return target
