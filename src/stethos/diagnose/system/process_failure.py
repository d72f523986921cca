"""SYS013: processes that ended badly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.window import Window
from stethos.store.literal import literal

_LONGEST = 100  # of an ending, in a title
_TOGETHER_NS = 600e9  # after the first of them the other processes of a job have given up
# What a rank says when another one is gone.
_LOST_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|lost)|broken pipe|\bpeer\b|NCCL|gloo|ProcessGroup|DistBackend|DistNetwork"
    r"|DistStore|socket|timed? ?out",
    re.IGNORECASE,
)
# Exceptions that no lost connection raises, whatever they speak of.
_OWN_MISTAKE = re.compile(r"uncaught (Type|Value|Key|Attribute|Assertion|Index|Name|Import|ModuleNotFound)Error\b")
_ADVICE = {
    "SIGKILL|without a word": "look into the system's log (`dmesg`) for the OOM killer, and at what it printed last",
    "SIGSEGV|SIGABRT|SIGBUS|SIGFPE|SIGILL": "it crashed below Python: PYTHONFAULTHANDLER=1 shows where it was",
    "exit status": "it ended by itself (`sys.exit`, `os._exit`): read what it printed last",
}

_RAY_WORKER = "ray/_private/workers/"
_LAST = 1 << 30  # behind all that a launcher has reported

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProcessFailure:
    """A process of the run ended with an uncaught exception, a signal or a bad exit status.

    What it looks at: how each process ended: what it reported itself, and its exit status. Of the ranks of a job, the
    first to fail is named, with those that ended because of it: they lost their connection, were stopped by the
    launcher, or are the launcher.

    Why it matters: whatever else is found, this is what stopped the training.

    Not a fault when: it was stopped on purpose: SIGINT and SIGTERM are reported, but not as a warning. Nor is a
    federated worker that was killed between turns, or a Ray worker whose driver succeeded: that is how Ray ends them.

    Next step: read the traceback; after SIGKILL look at `memory-growth` and the system's log for the OOM killer.
    """

    code: ClassVar[str] = "SYS013"
    name: ClassVar[str] = "process-failure"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"processes": frozenset({"process", "state"})}
    reads: ClassVar[Needs] = {
        "processes": frozenset(
            {"rank", "command", "ending", "exit_code", "traceback", "steps", "ended_ns", "failure_order"}
        ),
        "client_reports": frozenset({"process", "side", "steps"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset()

    def check(self, window: Window) -> Iterator[Finding]:
        processes = window.frame("processes")
        rows = [{name: processes[name][place] for name in processes.names} for place in range(len(processes))]
        bad = [row for row in rows if row["state"] in ("failed", "killed")]
        told = _steps_told(window)
        killed = [row for row in bad if row["state"] == "killed"]
        of_clients = [row for row in killed if _is_told(row, told)]
        released = _released(killed, rows)
        idle = of_clients + [row for row in released if row not in of_clients]
        for row in idle:
            yield self._finding(
                row,
                (),
                idle="a worker of Ray, after its job,"
                if row in released
                else "a worker of clients, between their turns,",
            )
        for first, *others in _failures([row for row in bad if row not in idle]):
            gone = _gone_before(first, rows)
            yield self._ended_early(gone, [first, *others]) if gone else self._finding(first, others)

    def _ended_early(self, gone: Sequence[Row], others: Sequence[Row]) -> Finding:
        """Ranks that came to their end, as it seems in good order, while the others still needed them."""
        ranks = tuple(sorted(rank for row in gone if (rank := _whole(row, "rank")) is not None))
        steps = _whole(gone[0], "steps")
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        return Finding(
            self.code, self.name, "ended-early", self.severity,
            f"{who} ended after {steps or 0:,} steps, without an error, while other ranks still waited for "
            f"{'it' if len(ranks) == 1 else 'them'}",
            Subject(ranks=ranks, process=str(gone[0]["process"]), first=steps, unit="step"), 0.92,
            (Evidence(
                f"after it ended {', '.join(map(_told, others))}",
                "SELECT rank, state, ending, steps, ended_ns FROM processes ORDER BY ended_ns",
            ),),
            "give all ranks as many batches (`drop_last`, a DistributedSampler), or use "
            "`DistributedDataParallel.join()`; look for `sys.exit` and `return` behind a condition of one rank",
        )  # fmt: skip

    def _finding(self, row: Row, others: Sequence[Row], *, idle: str = "") -> Finding:
        process, ending, rank, steps = str(row["process"]), _ending(row), _whole(row, "rank"), _whole(row, "steps")
        is_stopped = bool(idle) or any(word in ending for word in ("SIGINT", "SIGTERM", "KeyboardInterrupt"))
        who = f"{_who(row)}, {idle}" if idle else _who(row)
        trace = row.get("traceback")
        where = _place_in(trace) if isinstance(trace, str) else ""
        shown = ending if len(ending) <= _LONGEST else f"{ending[: _LONGEST - 1].rstrip()}…"
        evidence = [
            Evidence(
                (f"after {steps:,} step{'s' * (steps != 1)}" if steps else "before its first step") + where,
                f"SELECT process, state, ending, exit_code, traceback FROM processes "
                f"WHERE process = {literal(process)}",
            )
        ]
        if others:
            evidence.append(
                Evidence(
                    f"after it ended {', '.join(map(_told, others))}",
                    "SELECT process, rank, state, ending, ended_ns FROM processes WHERE state IN ('failed', 'killed') "
                    "ORDER BY ended_ns",
                )
            )
        return Finding(
            self.code,
            self.name,
            "stopped" if is_stopped else "lost-peer" if _is_consequence(row) else str(row["state"]),
            Severity.INFO if is_stopped else self.severity,
            f"{who} {'was stopped' if is_stopped else 'ended badly'}: {shown}",
            Subject(ranks=() if rank is None else (rank,), process=process, first=steps, unit="step"),
            confidence=1.0,
            evidence=tuple(evidence),
            next_step="read the traceback with that query" if isinstance(trace, str) else _advice(ending),
        )


def _failures(rows: Sequence[Row]) -> list[list[Row]]:
    """What failed together, whatever was first at the front: the ranks of a job and its launcher, others alone."""
    ordered = sorted(rows, key=lambda row: _whole(row, "ended_ns") or 0)
    jobs: list[list[Row]] = []
    alone: list[list[Row]] = []
    for row in ordered:
        rank, last = _whole(row, "rank"), jobs[-1] if jobs else []
        is_near = bool(last) and (_whole(row, "ended_ns") or 0) - (_whole(last[0], "ended_ns") or 0) <= _TOGETHER_NS
        is_launcher = rank is None and not _whole(row, "steps")
        if is_near and (is_launcher or (rank is not None and rank not in [_whole(other, "rank") for other in last])):
            last.append(row)
        elif rank is not None:
            jobs.append([row])
        else:
            alone.append([row])
    return [sorted(job, key=_precedence) for job in jobs] + alone


def _gone_before(first: Row, rows: Sequence[Row]) -> list[Row]:
    """The ranks that had ended well before the first failure of a job, if that was to lose a connection."""
    failed_ns = _whole(first, "ended_ns")
    if _whole(first, "rank") is None or not _is_consequence(first) or failed_ns is None:
        return []
    ranked = [row for row in rows if _whole(row, "rank") is not None and _whole(row, "steps")]
    ended = [row for row in ranked if row["state"] == "ended"]
    near = [row for row in ended if 0 <= failed_ns - (_whole(row, "ended_ns") or 0) <= _TOGETHER_NS]
    return sorted(near, key=lambda row: _whole(row, "ended_ns") or 0)


def _released(killed: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Workers of Ray that it has killed after their job: whatever is not such a worker has ended well."""
    workers = [row for row in rows if _RAY_WORKER in str(row.get("command") or "")]
    others = [row for row in rows if row not in workers]
    if not others or any(row["state"] != "ended" for row in others) or any(row["state"] == "failed" for row in workers):
        return []
    return [row for row in killed if row in workers]


def _precedence(row: Row) -> tuple[bool, bool, int]:
    """The rank that failed first comes first: its launcher knows, the time of its last row says little."""
    order = _whole(row, "failure_order")
    is_victim = _is_consequence(row) or "SIGTERM" in _ending(row)
    return _whole(row, "rank") is None, is_victim, _LAST if order is None else order


def _is_consequence(row: Row) -> bool:
    return _LOST_PEER.search(_ending(row)) is not None and _OWN_MISTAKE.match(_ending(row)) is None


def _told(row: Row) -> str:
    if _whole(row, "rank") is None:
        return f"its launcher, {_who(row)}"
    if "SIGTERM" in _ending(row):
        return f"{_who(row)} (stopped by the launcher)"
    return f"{_who(row)} (lost its connection)" if _is_consequence(row) else _who(row)


def _who(row: Row) -> str:
    rank = _whole(row, "rank")
    return f"process {row['process']}" if rank is None else f"rank {rank}"


def _ending(row: Row) -> str:
    return str(row.get("ending") or row["state"])


def _advice(ending: str) -> str:
    return next((advice for words, advice in _ADVICE.items() if re.search(words, ending)), "look into the system's log")


def _steps_told(window: Window) -> dict[str, float]:
    """The steps in turns that a process of clients has finished, by process."""
    reports = window.frame("client_reports")
    found: dict[str, float] = {}
    if len(reports) and "side" in reports:
        steps = reports["steps"] if "steps" in reports else [None] * len(reports)
        for process, side, count in zip(reports["process"], reports["side"], steps, strict=True):
            if side == "client":
                known = count if isinstance(count, int | float) and count == count else 0
                found[str(process)] = found.get(str(process), 0) + known
    return found


def _is_told(row: Row, told: Mapping[str, float]) -> bool:
    """Whether all steps of a process are those of its clients' finished turns."""
    return told.get(str(row["process"]), -1) >= (_whole(row, "steps") or 0)


def _whole(row: Row, name: str) -> int | None:
    value = row.get(name)
    return int(value) if isinstance(value, int | float) and value == value else None


def _place_in(trace: str) -> str:
    """The last place of a traceback, in words."""
    places = [line.strip() for line in trace.splitlines() if line.strip().startswith('File "')]
    return f"; raised in {places[-1][:160]}" if places else ""
