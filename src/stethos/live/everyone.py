"""Asking every process of a run at once, and meeting them at the same step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from stethos.errors import StethosError
from stethos.live.ask import DEFAULT_TIMEOUT_S, ask
from stethos.live.registry import LiveProcess
from stethos.live.target import steps_of
from stethos.record.place import RunPlace

_MOST_AT_ONCE = 32
_PACE_S = 0.25
_AHEAD_S = 0.5
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
    """A step that every process is still to make and will make soon; None if one of them makes no steps."""
    before = [steps_of(process) for process in processes]
    time.sleep(_PACE_S)
    after = [steps_of(process) for process in processes]
    if not after or any(late <= early for early, late in zip(before, after, strict=True)):
        return None
    pace = max(late - early for early, late in zip(before, after, strict=True)) / _PACE_S
    return max(after) + max(_LEAST_AHEAD, math.ceil(pace * _AHEAD_S))


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
