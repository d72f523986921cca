"""SYS016: a training that hangs, as the watchdog saw it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.window import Window
from stethos.store.frame import Frame

_NEXT = {
    "missing-rank": "make every rank call the same collectives in the same order; see its stack: {stacks}",
    "mismatch": "make every rank call the same collective with the same shapes; see the stacks: {stacks}",
    "exchange": "order sends and receives so that one rank sends while the other receives, or use `isend` and `irecv`",
    "data-loader": "look at the dataset where it stands, and at its disk or network; see the stack: {stacks}",
    "lock": "find who holds the lock: {stacks}",
    "disk": "look at the disk and at the network file system (`iostat`, `dmesg`)",
    "client": "see whether the client is alive, and give the wait a time limit",
    "gil": "let the C code release the GIL, or run it in a separate process",
    "busy": "see whether it computes or loops: {stacks}",
    "unknown": "look at its stack: {stacks}",
}


@dataclass(frozen=True, slots=True)
class Hang:
    """A training has stopped making progress: the watchdog says which process is the cause, and where it is stuck.

    What it looks at: the rows of `hangs`, which the watchdog writes when no step, no batch, no collective and no data
    moved for longer than `at_least_s` and `times` the usual step (twice the longest pause so far), and two looks at
    the stacks showed no movement.

    Why it matters: a hang looks like a running job from outside, and pays for its machines like one. In a distributed
    job all ranks hang, and only one of them is the cause.

    Not a fault when: the program waits on purpose, for example for a person or a federated round. Raise `at_least_s`
    with `stethos run --hang-after`.

    Next step: look at the stacks of both sides: `stethos query "SELECT * FROM stacks"`, or now with `stethos all
    backtrace`.
    """

    code: ClassVar[str] = "SYS016"
    name: ClassVar[str] = "hang"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"processes": frozenset({"process", "state"})}
    reads: ClassVar[Needs] = {
        "hangs": frozenset(
            {
                "hang",
                "process",
                "role",
                "cause",
                "words",
                "t_ns",
                "rank",
                "place",
                "group",
                "seq",
                "op",
                "missing",
                "silent_s",
                "limit_s",
                "step",
                "detail",
            }
        ),
        "steps": frozenset({"process", "t_ns", "step"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset(
        {"stalled-process", "low-utilisation", "process-failure", "rank-straggler"}
    )

    at_least_s: float = threshold(30.0, "seconds without progress; `stethos run` reads it from `stethos.toml`")
    times: float = threshold(30.0, "times the usual step; read in the same way")

    def check(self, window: Window) -> Iterator[Finding]:
        hangs, steps = window.frame("hangs"), window.frame("steps")
        if not len(hangs):
            return
        last_ns = {
            process: float(frame["t_ns"].max())
            for process, frame in (steps.groups("process") if "process" in steps else {}).items()
        }
        for number, rows in hangs.groups("hang").items():
            yield self._finding(int(number), rows, last_ns)

    def _finding(self, number: int, rows: Frame, last_ns: dict[Any, float]) -> Finding:
        people = [_Member(rows, place) for place in range(len(rows))]
        culprits = [one for one in people if one.role == "culprit"]
        waiting = [one for one in people if one.role == "waiting"]
        first = (culprits or people)[0]
        is_over = any(last_ns.get(one.process, 0.0) > float(rows["t_ns"].max()) for one in (*culprits, *waiting))
        kind = str(rows["cause"][0])
        missing = _list_in(first.get("missing"))
        ranks = tuple(dict.fromkeys(one.rank for one in culprits if one.rank is not None)) or tuple(missing)
        stacks = f"SELECT rank, process, thread, depth, func, file, lineno FROM stacks WHERE reason = 'hang {number}'"
        silent_s = max((float(one.get("silent_s") or 0.0) for one in people), default=0.0)
        return Finding(
            self.code,
            self.name,
            kind,
            self.severity,
            _title(kind, culprits, waiting, missing, first),
            Subject(
                clients=tuple(filter(None, [first.detail.get("client")])),
                ranks=ranks,
                process=first.process if culprits else None,
                first=_whole(first.get("step")),
                last=_whole(first.get("step")) if is_over else None,
                unit="step",
            ),
            confidence=0.6 if kind in ("busy", "unknown") else 0.95,
            evidence=(
                Evidence(
                    f"no step for {silent_s:,.0f} s; " + "; ".join(f"{one.title} {one.words}" for one in people[:8]),
                    f"SELECT rank, process, role, place, words FROM hangs WHERE hang = {number} ORDER BY role, rank",
                ),
                Evidence("the stacks of all of them at that time", f"{stacks} ORDER BY process, thread, depth"),
            ),
            next_step=_NEXT.get(kind, _NEXT["unknown"]).format(stacks=_look(first)),
            detail={
                "hang": number, "silent_s": silent_s, "limit_s": first.get("limit_s"), "group": first.get("group"),
                "seq": _whole(first.get("seq")), "op": first.get("op"), "missing": missing,
                "processes": [
                    {"process": one.process, "rank": one.rank, "role": one.role, "place": one.get("place"),
                     "words": one.words}
                    for one in people
                ],
            },
            is_open=not is_over,
        )  # fmt: skip


class _Member:
    """One row of a hang."""

    def __init__(self, rows: Frame, place: int) -> None:
        self._rows = rows
        self._place = place
        self.role = str(rows["role"][place])
        self.process = str(rows["process"][place])
        self.rank = _whole(self.get("rank"))
        self.words = str(self.get("words") or "stands still")
        try:
            detail = json.loads(str(self.get("detail") or "{}"))
        except ValueError:
            detail = {}
        self.detail: dict[str, Any] = detail if isinstance(detail, dict) else {}

    @property
    def title(self) -> str:
        pid, _, _ = self.process.partition("-")  # by which commands know it
        return f"rank {self.rank}" if self.rank is not None else f"process {pid if pid.isdigit() else self.process}"

    def get(self, name: str) -> Any:
        """A column's value; None where it is NULL or not there."""
        if name not in self._rows:
            return None
        value = self._rows[name][self._place]
        return None if value is None or value != value else value


def _title(kind: str, culprits: list[_Member], waiting: list[_Member], missing: list[int], first: _Member) -> str:
    if kind == "exchange" and len(culprits) > 1:
        each = "; ".join(f"{one.title} {one.words}" for one in culprits[:3])
        return f"{_list(culprits)} wait for each other: {each}"
    if kind not in ("missing-rank", "mismatch") or first.get("seq") is None:
        return f"{first.title} hangs: it {first.words}"
    what = f"{first.get('op')} {_whole(first.get('seq'))} of group {first.get('group')}"
    others = f"; {_names(waiting)} in it, at {waiting[0].get('place')}" if waiting else ""
    place = "; ".join(f"{'it' if len(culprits) == 1 else one.title} {one.words}" for one in culprits[:3])
    if kind == "mismatch":
        return f"{_list(culprits)} did not call {what} as the others did: {place}{others}"
    if not culprits:
        ranks = ", ".join(map(str, missing))
        return f"rank {ranks} is missing from {what}, and is not on this machine{others}"
    return f"{_list(culprits)} {'is' if len(culprits) == 1 else 'are'} missing from {what}: {place}{others}"


def _list(members: list[_Member]) -> str:
    ranks = [str(one.rank) for one in members]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}"


def _names(waiting: list[_Member]) -> str:
    return f"{_list(waiting)} {'waits' if len(waiting) == 1 else 'wait'}"


def _look(first: _Member) -> str:
    pid = first.detail.get("pid")
    return f"stethos {pid} backtrace" if pid else "stethos all backtrace"


def _list_in(text: Any) -> list[int]:
    try:
        found = json.loads(str(text or "[]"))
    except ValueError:
        return []
    return [int(one) for one in found] if isinstance(found, list) else []


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
