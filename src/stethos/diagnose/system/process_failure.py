"""Processes that ended badly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import sql_text
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class ProcessFailure:
    """A process of the run ended with an uncaught exception, a signal or a bad exit status.

    What it looks at: how each process ended: its own last word, and its exit status.

    Why it matters: whatever else is found, this is what stopped the training.

    Not a fault when: somebody stopped it: SIGINT and SIGTERM are told, but are no warning. Nor is a worker of federated
    clients that was killed between their turns, as Ray does when a simulation is over.

    Next step: read the traceback; after SIGKILL look at `memory-growth` and the system's log for the OOM killer.
    """

    code: ClassVar[str] = "SYS013"
    name: ClassVar[str] = "process-failure"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"processes": frozenset({"process", "state"})}
    reads: ClassVar[Needs] = {
        "processes": frozenset({"rank", "ending", "exit_code", "traceback", "steps"}),
        "client_reports": frozenset({"process", "side", "steps"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset()

    def check(self, window: Window) -> Iterator[Finding]:
        processes = window.frame("processes")
        told = _steps_told(window)
        for place in range(len(processes)):
            row = {name: processes[name][place] for name in processes.names}
            if row["state"] in ("failed", "killed"):
                is_idle = row["state"] == "killed" and told.get(str(row["process"]), -1) >= (
                    _whole(row.get("steps")) or 0
                )
                yield self._finding(row, is_idle=is_idle)

    def _finding(self, row: dict[str, Any], *, is_idle: bool) -> Finding:
        process, ending = str(row["process"]), str(row.get("ending") or row["state"])
        rank, steps = _whole(row.get("rank")), _whole(row.get("steps"))
        is_stopped = is_idle or any(word in ending for word in ("SIGINT", "SIGTERM", "KeyboardInterrupt"))
        who = f"process {process}" if rank is None else f"rank {rank}"
        who += ", a worker of clients, between their turns," * is_idle
        trace = row.get("traceback")
        where = _place_in(trace) if isinstance(trace, str) else ""
        return Finding(
            self.code,
            self.name,
            "stopped" if is_stopped else str(row["state"]),
            Severity.INFO if is_stopped else self.severity,
            f"{who} ended badly: {ending[:100]}" if not is_stopped else f"{who} was stopped: {ending[:100]}",
            Subject(ranks=() if rank is None else (rank,), process=process, first=steps, unit="step"),
            confidence=1.0,
            evidence=(
                Evidence(
                    (f"after {steps:,} steps" if steps else "before its first step") + where,
                    f"SELECT process, state, ending, exit_code, traceback FROM processes "
                    f"WHERE process = {sql_text(process)}",
                ),
            ),
            next_step="read the traceback with that query" if isinstance(trace, str) else "look into the system's log",
        )


def _steps_told(window: Window) -> dict[str, float]:
    """The steps in turns that a process of clients has finished, by process."""
    reports = window.frame("client_reports")
    found: dict[str, float] = {}
    if len(reports) and "side" in reports:
        steps = reports["steps"] if "steps" in reports else [None] * len(reports)
        for process, side, count in zip(reports["process"], reports["side"], steps, strict=True):
            if side == "client":
                known = _whole(count) or 0
                found[str(process)] = found.get(str(process), 0) + known
    return found


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and value == value else None


def _place_in(trace: str) -> str:
    """The last place of a traceback, in words."""
    places = [line.strip() for line in trace.splitlines() if line.strip().startswith('File "')]
    return f"; raised in {places[-1][:160]}" if places else ""
