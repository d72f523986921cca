"""RNK002: ranks that did not make the same collective call."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.window import Window
from stethos.store.literal import literal

_SIZED = "all_reduce"  # an operation in which all ranks must have as many bytes
_ABORTED = -6


class CollectiveCall(NamedTuple):
    """One collective call of one rank."""

    op: str
    bytes: int

    @property
    def words(self) -> str:
        return f"{self.op} of {self.bytes:,} bytes" if self.op == _SIZED else self.op

    @property
    def essence(self) -> tuple[str, int]:
        """What must be the same on all ranks."""
        return self.op, self.bytes if self.op == _SIZED else 0


class LastCall(NamedTuple):
    """What a rank was doing in a group when it ended, or is doing now."""

    rank: int
    process: str
    steps: int
    exit_code: int | None
    sequence: int
    complete: int
    call: CollectiveCall


@dataclass(frozen=True, slots=True)
class CollectiveMismatch:
    """Ranks called different collectives, or with different sizes, where all must make the same call.

    What it looks at: the operation and size of the calls with one sequence number in one group, on all ranks: from
    their rows, and from what each rank was doing when it ended.
    Why it matters: the ranks wait for each other forever, abort, or add up numbers that do not belong together.
    Not a fault when: never.
    Next step: make every rank call the same collectives, in the same order and with the same shapes and dtypes.
    """

    code: ClassVar[str] = "RNK002"
    name: ClassVar[str] = "collective-mismatch"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"processes": frozenset({"process", "rank", "groups"})}
    reads: ClassVar[Needs] = {
        "processes": frozenset({"process", "rank", "groups", "state", "exit_code", "steps"}),
        "collectives": frozenset({"rank", "group", "seq", "op", "bytes"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset(
        {"hang", "process-failure", "stalled-process", "rank-straggler", "low-utilisation"}
    )

    def check(self, window: Window) -> Iterator[Finding]:
        for group, ranks in _last_calls(window).items():
            if len(ranks) < 2:
                continue
            waiting = [one for one in ranks if one.sequence > one.complete]
            for sequence in sorted({one.sequence for one in waiting}):
                calls = _calls_at(window, group, sequence, ranks)
                if len({call.essence for call in calls.values()}) > 1:
                    yield self._finding(group, sequence, calls, ranks)
                    return
            aborted = [one for one in waiting if one.exit_code == _ABORTED]
            absent = [one for one in ranks if aborted and one.sequence < aborted[0].sequence]
            if absent:
                yield self._absent(group, aborted[0], absent)

    def _finding(self, group: str, sequence: int, calls: dict[int, CollectiveCall], ranks: list[LastCall]) -> Finding:
        counts = Counter(call.essence for call in calls.values())
        usual = max(calls, key=lambda rank: (counts[calls[rank].essence], -rank))
        odd = tuple(sorted(rank for rank, call in calls.items() if call.essence != calls[usual].essence))
        title = (
            f"{_names(odd)} called {calls[odd[0]].words} as number {sequence} of group {group}, where "
            f"{_names(tuple(rank for rank in sorted(calls) if rank not in odd))} called {calls[usual].words}"
        )
        return self._made(title, odd, group, sequence, 0.95, ranks)

    def _absent(self, group: str, aborted: LastCall, absent: list[LastCall]) -> Finding:
        odd = tuple(sorted(one.rank for one in absent))
        title = (
            f"rank {aborted.rank} aborted in {aborted.call.words}, number {aborted.sequence} of group {group}, "
            f"which {_names(odd)} did not call"
        )
        return self._made(title, odd, group, aborted.sequence, 0.8, [*absent, aborted])

    def _made(
        self, title: str, odd: tuple[int, ...], group: str, sequence: int, sure: float, ranks: list[LastCall]
    ) -> Finding:
        text = "; ".join(f"rank {one.rank}: last {one.call.words}, number {one.sequence}" for one in ranks[:8])
        first = min(one.steps for one in ranks)
        return Finding(
            self.code, self.name, self.name, self.severity, title,
            Subject(ranks=odd, first=first, unit="step"), sure,
            (
                Evidence(text, "SELECT rank, state, exit_code, groups FROM processes ORDER BY rank"),
                Evidence(
                    "the calls before and after it",
                    f"SELECT seq, rank, op, bytes, done FROM collectives WHERE \"group\" = {literal(group)} "
                    f"AND seq > {sequence - 3} ORDER BY seq, rank",
                ),
            ),
            "make every rank call the same collectives in the same order, with the same shapes and dtypes: look for "
            "calls behind a condition that depends on the rank or on its data",
            {"group": group, "seq": sequence},
        )  # fmt: skip


def _last_calls(window: Window) -> dict[str, list[LastCall]]:
    """By group, what each rank was doing in it."""
    processes = window.frame("processes")
    found: dict[str, list[LastCall]] = {}
    for place in range(len(processes)):
        row: dict[str, Any] = {name: processes[name][place] for name in processes.names}
        rank, groups = row.get("rank"), row.get("groups")
        if not isinstance(groups, str) or rank is None or rank != rank or row.get("state") == "ended":
            continue
        steps, code = row.get("steps"), row.get("exit_code")
        status = int(code) if code is not None and code == code else None
        for one in json.loads(groups):
            last = LastCall(
                int(rank), str(row["process"]), int(steps or 0), status,
                one["begun"], one["complete"], CollectiveCall(one["op"], one["bytes"]),
            )  # fmt: skip
            found.setdefault(str(one["name"]), []).append(last)
    return found


def _calls_at(window: Window, group: str, sequence: int, ranks: list[LastCall]) -> dict[int, CollectiveCall]:
    """The calls of one number by rank; what C++ called is not known as long as it has no row."""
    calls = {one.rank: one.call for one in ranks if one.sequence == sequence and one.call.op != "(c++)"}
    frame = window.frame("collectives")
    if len(frame):
        mine = frame.where((frame["group"] == group) & (frame["seq"] == sequence))
        for place in range(len(mine)):
            rank = mine["rank"][place]
            if rank is not None and rank == rank:
                calls.setdefault(int(rank), CollectiveCall(str(mine["op"][place]), int(mine["bytes"][place] or 0)))
    return calls


def _names(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
