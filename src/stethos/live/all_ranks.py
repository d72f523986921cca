"""Asking every process of a run at once, and meeting them at the same step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from stethos.errors import StethosError
from stethos.live.ask import DEFAULT_TIMEOUT_S, ask
from stethos.live.registry import LiveProcess
from stethos.record.place import RunPlace
from stethos.store.header import read_header

_MOST_AT_ONCE = 32
_PACE_S = 0.25
_LOOK_S = 0.05
_SILENT_S, _LONGEST_SILENT_S = 2.0, 30.0  # a process whose last step is longer ago makes none
_SILENT_STEPS = 10  # of the usual length
_AHEAD_S = 0.75
_LEAST_AHEAD = 2
Result = TypeVar("Result")


def for_all(processes: Sequence[LiveProcess], do: Callable[[LiveProcess], Result]) -> list[Result | StethosError]:
    """Do something with every process at the same time; what came of each, in their order."""

    def attempt(process: LiveProcess) -> Result | StethosError:
        try:
            return do(process)
        except StethosError as error:
            return error

    if not processes:
        return []
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(processes))) as pool:
        return list(pool.map(attempt, processes))


def ask_all(
    processes: Sequence[LiveProcess], op: str, timeout_s: float = DEFAULT_TIMEOUT_S, **arguments: Any
) -> list[dict[str, Any] | StethosError]:
    """The same question to every process."""
    return for_all(processes, lambda process: ask(process, op, timeout_s, **arguments))


def meeting_step(processes: Sequence[LiveProcess]) -> int | None:
    """A step that every process is still to make and will make soon; None if one of them makes no steps.

    A process that pauses is waited for: on a busy machine, or where steps take long, none comes for a while. The step
    lies ahead by the fastest pace that is known, for after a pause they come as usual.
    """
    before = [_progress_of(process) for process in processes]
    began = time.monotonic()
    time.sleep(_PACE_S)
    while True:
        after = [_progress_of(process) for process in processes]
        slowest = [late for early, late in zip(before, after, strict=True) if late.steps <= early.steps]
        waited_s = time.monotonic() - began
        if not slowest or any(max(waited_s, one.silent_s) > one.patience_s for one in slowest):
            break
        time.sleep(_LOOK_S)
    if slowest or not after:
        return None
    made = [(late.steps - early.steps) / waited_s for early, late in zip(before, after, strict=True)]
    pace = max(*made, *(one.per_s for one in after))
    return max(one.steps for one in after) + max(_LEAST_AHEAD, math.ceil(pace * _AHEAD_S))


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far a process has come: its steps, how many a second on average, and how long ago the last one was."""

    steps: int
    per_s: float
    silent_s: float

    @property
    def patience_s(self) -> float:
        """How long its next step may take."""
        usual_s = 1 / self.per_s if self.per_s > 0 else 0.0
        return min(max(_SILENT_S, _SILENT_STEPS * usual_s), _LONGEST_SILENT_S)


def _progress_of(process: LiveProcess) -> _Progress:
    """From the ring; the process is not asked."""
    header = read_header(process.place.ring())
    if header is None:
        return _Progress(0, 0.0, math.inf)
    counted = header.counters
    lasted_s = (counted.last_step_ns - counted.started_ns) / 1e9
    per_s = counted.steps / lasted_s if lasted_s > 0 else 0.0
    return _Progress(counted.steps, per_s, (time.time_ns() - counted.last_step_ns) / 1e9)


def missing_ranks(run: RunPlace | None, processes: Sequence[LiveProcess]) -> dict[int, str]:
    """Ranks of the job that are not among these processes, and what is known of them."""
    if run is None:
        return {}
    known: dict[int, str] = {}
    size = 0
    for place in run.processes():
        facts = place.facts()
        size = max(size, int(facts.get("world_size") or 0))
        if facts.get("rank") is not None:
            rank = int(facts["rank"])
            is_over = "ended" in place.manifest()
            known[rank] = "has ended" if is_over else f"is not alive here (host {facts.get('host')})"
    here = {process.rank for process in processes}
    return {rank: known.get(rank, "has not joined the run") for rank in range(size) if rank not in here}
