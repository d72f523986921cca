"""How far the clocks of a run's processes are apart, from what must have been inside what.

A span encloses those that other processes opened inside it, as a round does with its clients' turns. Where the
recorded times say otherwise a clock is off. Each process is moved by the least that puts this right; processes whose
times make sense are not moved at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stethos.view.stream import stream

if TYPE_CHECKING:
    from stethos.store.run import Run

_SPANS = """
SELECT child.process, parent.process, child.t_ns, child.duration_ms, parent.t_ns, parent.duration_ms
FROM spans AS child JOIN spans AS parent ON child.parent = parent.span AND child.trace = parent.trace
WHERE child.process <> parent.process AND child.duration_ms IS NOT NULL AND parent.duration_ms IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class NestedWork:
    """A piece of work of one process inside one of another."""

    inner: str
    outer: str
    inner_start_ns: int
    inner_end_ns: int
    outer_start_ns: int
    outer_end_ns: int


def offsets_of(run: Run) -> dict[str, int]:
    """Nanoseconds to add to the times of each process that has to be moved."""
    return offsets(_enclosures(run))


def offsets(enclosures: Iterable[NestedWork]) -> dict[str, int]:
    """The least moves; a process is moved relative to those that enclose its work."""
    links: dict[str, dict[str, list[NestedWork]]] = defaultdict(lambda: defaultdict(list))
    for one in enclosures:
        links[one.inner][one.outer].append(one)
    outers = {outer for by_outer in links.values() for outer in by_outer}
    moves = dict.fromkeys(outers - set(links), 0)
    waiting = list(links)
    while waiting:
        ready = [process for process in waiting if links[process].keys() & moves.keys()]
        if not ready:  # they enclose each other: nobody's clock is the reference
            break
        for process in ready:
            inside = [(one, moves[outer]) for outer, found in links[process].items() if outer in moves for one in found]
            moves[process] = _least_move(inside)
        waiting = [process for process in waiting if process not in moves]
    return {process: move for process, move in moves.items() if move}


def _least_move(inside: list[tuple[NestedWork, int]]) -> int:
    low = max(one.outer_start_ns + move - one.inner_start_ns for one, move in inside)
    high = min(one.outer_end_ns + move - one.inner_end_ns for one, move in inside)
    if low <= high:
        return min(max(0, low), high)
    middles = sorted(
        (one.outer_start_ns + one.outer_end_ns - one.inner_start_ns - one.inner_end_ns) // 2 + move
        for one, move in inside
    )
    return 0 if high <= 0 <= low else middles[len(middles) // 2]  # a clock that drifts: the middle errs least


def _enclosures(run: Run) -> Iterator[NestedWork]:
    for inner, outer, inner_ns, inner_ms, outer_ns, outer_ms in stream(run, _SPANS):
        yield NestedWork(inner, outer, inner_ns, inner_ns + ns_of(inner_ms), outer_ns, outer_ns + ns_of(outer_ms))


def span_rows(run: Run, every: int) -> Iterator[tuple[Any, ...]]:
    """All spans by process and time; where traces are left out, whole ones are."""
    query = f"""SELECT process, client, round, step, t_ns, name, duration_ms, ok, trace, span, parent, fields, exception
        FROM spans WHERE trace IS NULL OR hash(trace) % {every} = 0 ORDER BY process, t_ns"""
    return stream(run, query)


def ns_of(milliseconds: float | None) -> int:
    """A duration in ns; one that is unknown, negative or no number is 0."""
    return round(milliseconds * 1e6) if milliseconds is not None and 0 < milliseconds < 1e15 else 0
