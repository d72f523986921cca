"""The tables `processes` and `runs`, made from the files of a run directory."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from stethos.record.directories import files_below
from stethos.record.layout import State
from stethos.record.place import RunPlace, is_at_work
from stethos.schema import STEPS
from stethos.store.ledger import Ledger, total
from stethos.store.process import ProcessReader
from stethos.store.sealed import SealChecker

RunState = Literal["running", "ended", "failed", "killed"]
Row = dict[str, Any]
_STOPPED = "stopped by its parent, or killed: it was a daemon of multiprocessing"
_NOT_HEARD_OF = "not heard of any more: it has ended, or goes on at its site and cannot send"


def process_row(reader: ProcessReader, launchers: Sequence[dict[str, Any]], ledger: Ledger, stored_steps: int) -> Row:
    """One row of `processes`; `stored_steps` are its rows in `steps`, which its own counter may lag behind."""
    facts, counters = reader.facts, reader.counters
    launcher = _launcher_of(reader, launchers)
    exit_code = launcher.get("exit_code")
    state = process_state(reader, exit_code)
    return {
        "process": reader.name,
        "pid": facts.get("pid"),
        "rank": reader.rank,
        "world_size": facts.get("world_size"),
        "host": facts.get("host"),
        "command": command_line(facts.get("command")),
        "cwd": facts.get("cwd"),
        "python": facts.get("python"),
        "torch": facts.get("torch"),
        "versions": _json_or_none(facts.get("versions")),
        "config": _json_or_none(facts.get("config")),
        "preset": facts.get("preset"),
        "started_ns": facts.get("started_ns"),
        "ended_ns": None if state == "running" else _ended_ns(reader, launcher),
        "state": state,
        "ending": None if state == "running" else ending_in_words(state, exit_code, facts.get("error")),
        "exit_code": exit_code,
        "traceback": facts.get("traceback"),
        "failure_order": None,
        "groups": _json_or_none(reader.manifest.get("groups") or (reader.ring.groups if reader.ring else None)),
        "steps": max(counters.steps, stored_steps) if counters else stored_steps,
        "overhead_share": overhead_share([reader]),
        "overhead_budget": facts.get("overhead_budget"),
        "rows_produced": ledger.produced,
        "rows_stored": ledger.stored,
        "rows_dropped": ledger.dropped,
        "rows_lost": ledger.lost,
        "drops": json.dumps(dict(ledger.drops)),
        "rows_withheld": ledger.withheld,
        "rows_pending": ledger.pending,
    }


def run_row(place: RunPlace, processes: Sequence[Row], rows_stored: int) -> Row:
    """The one row of `runs`; `rows_stored` is the number of rows that can be read."""
    facts, launchers = place.facts(), launchers_of(place)
    state = run_state(launchers, [row["state"] for row in processes])
    last = launchers[-1] if launchers else {}
    archived = facts.get("archived")
    archived = archived if isinstance(archived, dict) else {}
    ends = [row["ended_ns"] for row in processes if row["ended_ns"]] + [
        launcher["ended_ns"] for launcher in launchers if launcher.get("ended_ns")
    ]
    return {
        "run": facts.get("run") or place.name,
        "path": str(archived.get("address") or place.path.resolve()),
        "state": state,
        "command": command_line(facts.get("command")),
        "host": facts.get("host"),
        "git_commit": facts.get("git_commit"),
        "version": facts.get("version"),
        "started_ns": facts.get("started_ns"),
        "ended_ns": None if state == "running" else max(ends, default=None),
        "exit_code": last.get("exit_code"),
        "processes": len(processes),
        "steps": sum(row["steps"] or 0 for row in processes),
        "rows_stored": rows_stored,
        "size_bytes": archived["bytes"] if isinstance(archived.get("bytes"), int) else size_of(place.path),
    }


def process_rows(readers: Sequence[ProcessReader], place: RunPlace, examiner: SealChecker) -> tuple[list[Row], Ledger]:
    """All rows of `processes`, and their books added up."""
    launchers = launchers_of(place)
    ledgers = [reader.ledger(examiner) for reader in readers]
    rows = [
        process_row(reader, launchers, ledger, reader.rows_by_table(examiner).get(STEPS.name, 0))
        for reader, ledger in zip(readers, ledgers, strict=True)
    ]
    _take_reports(readers, rows)
    _judge_silent(readers, rows)
    for reader, row in zip(readers, rows, strict=True):
        parent = reader.facts.get("daemon_of")
        if parent is not None and row["state"] == "killed" and _has_not_failed(parent, reader, rows, launchers):
            row |= {"state": "ended", "ending": _STOPPED}
    return rows, total(ledgers)


def _judge_silent(readers: Sequence[ProcessReader], rows: Sequence[Row]) -> None:
    """Of a client elsewhere that is silent nobody has said that it was killed.

    What rides along in a federation's messages comes once a round, and what a site has after its last reply stays
    there: so such a client goes on as long as the federation's server does.
    """
    goes_on = any(row["state"] == "running" for reader, row in zip(readers, rows, strict=True) if reader.is_here)
    for reader, row in zip(readers, rows, strict=True):
        if row["state"] == "killed" and reader.is_collected and not reader.has_said_its_end:
            row |= (
                {"state": "running", "ending": None, "ended_ns": None}
                if goes_on
                else {"state": "ended", "ending": _NOT_HEARD_OF}
            )


def _take_reports(readers: Sequence[ProcessReader], rows: Sequence[Row]) -> None:
    """What launchers have said about their workers: exit statuses, and which one failed first."""
    for launcher in readers:
        children = launcher.facts.get("children")
        for order, child in enumerate(children if isinstance(children, list) else ()):
            for row in rows:
                if (
                    row["pid"] == child["pid"]
                    and row["host"] == launcher.facts.get("host")
                    and row["exit_code"] is None
                ):
                    code = int(child["exit_code"])
                    row |= {"exit_code": code, "failure_order": order}
                    if row["state"] == "killed":
                        row |= {
                            "state": "killed" if code < 0 else "failed",
                            "ending": ending_in_words("failed", code, None),
                        }


def _has_not_failed(
    parent: int, reader: ProcessReader, rows: Sequence[Row], launchers: Sequence[dict[str, Any]]
) -> bool:
    """Whether the parent of a daemon goes on or has ended well: it stops its daemons by a signal, as pools do."""
    states = [row["state"] for row in rows if row["pid"] == parent and row["host"] == reader.facts.get("host")]
    if states:
        return states[-1] in ("running", "ended")
    return bool(launchers) and not launchers[-1].get("exit_code")


def launchers_of(place: RunPlace) -> list[dict[str, Any]]:
    """The `stethos run` commands of a run, the latest last."""
    return sorted(place.launchers(), key=lambda launcher: int(launcher.get("started_ns") or 0))


def process_state(reader: ProcessReader, exit_code: int | None) -> RunState:
    """How a process is doing, from its exit status and, where that is not known or 0, from its own last word."""
    if reader.is_running:
        return "running"
    if exit_code:
        return "killed" if exit_code < 0 else "failed"
    state = reader.counters.state if reader.counters else State.RUNNING
    match state:
        case State.ENDED:
            return "ended"
        case State.FAILED:
            return "failed"
        case State.RUNNING:
            return "killed" if exit_code is None else "ended"


def ending_in_words(state: RunState, exit_code: int | None, error: str | None) -> str:
    """How a process ended: the signal, else the error, else the exit status."""
    if exit_code is not None and exit_code < 0:
        return f"killed by {_signal_name(-exit_code)}"
    if error:
        lines = [line for line in error.splitlines() if any(map(str.isalnum, line))] or [error]
        return f"uncaught {lines[0].strip()}" + (f" ... {lines[-1].strip()}" if len(lines) > 1 else "")
    if exit_code:
        return f"exit status {exit_code}"
    return {"ended": "ended", "failed": "failed"}.get(
        state, "ended without a word: killed, by os._exit, or the machine went down"
    )


def run_state(launchers: Sequence[dict[str, Any]], states: Sequence[RunState]) -> RunState:
    """A run is running while a launcher or a process is; else it ended as its command or its processes did."""
    if "running" in states or any(map(is_at_work, launchers)):
        return "running"
    exit_code = launchers[-1].get("exit_code") if launchers else None
    if exit_code is not None:
        return "killed" if exit_code < 0 else "failed" if exit_code else "ended"
    for state in ("failed", "killed"):
        if state in states:
            return state
    return "ended"


def overhead_share(readers: Sequence[ProcessReader]) -> float | None:
    """The share of training time spent observing; None before the first step.

    A site's policy rounds these times, so they say nothing about a client that keeps anything back: its own
    `stethos doctor` does.
    """
    found = [reader.counters for reader in readers if reader.counters and not reader.withholds]
    timed = [one for one in found if one.steps and one.last_step_ns > one.started_ns]
    if not timed:
        return None
    return sum(one.spent_ns for one in timed) / sum(one.last_step_ns - one.started_ns for one in timed)


def command_line(command: object) -> str | None:
    """A command as one could type it."""
    if isinstance(command, list):
        return shlex.join(str(word) for word in command)
    return None if command is None else str(command)


def size_of(directory: Path) -> int:
    """Bytes of all files below a directory that may be changing."""
    size = 0
    for place, files in files_below(directory):
        for name in files:
            try:
                size += os.lstat(place / name).st_size
            except OSError:
                continue
    return size


def _launcher_of(reader: ProcessReader, launchers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    pid, host = reader.facts.get("pid"), reader.facts.get("host_key")
    if pid is not None:
        for launcher in launchers:
            if launcher.get("child_pid") == pid and launcher.get("host_key") == host:
                return launcher
    return {}


def _ended_ns(reader: ProcessReader, launcher: dict[str, Any]) -> int | None:
    collected = reader.manifest.get("ended", {}).get("t_ns")
    known = reader.facts.get("ended_ns") or launcher.get("ended_ns") or collected or reader.last_sign_ns()
    return int(known) or None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _json_or_none(value: object) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
