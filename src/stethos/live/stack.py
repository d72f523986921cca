"""Where a process is: its stacks, read from outside by py-spy, so that it need not answer and is not disturbed.

A process that stands still is read without being stopped: stopping one would break off some waits in C. One that
runs is paused for the milliseconds that a consistent reading takes. Where nobody may look from outside, its agent
is asked. Our own frames and threads are left out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stethos.errors import LiveError, RunNotFoundError
from stethos.live.ask import ask
from stethos.live.permission import why_not_readable
from stethos.live.registry import live_process
from stethos.record.place import start_ticks

Source = Literal["py-spy", "agent"]
OUR_DIRECTORY = str(Path(__file__).resolve().parents[1]) + "/"
OUR_THREADS = ("stethos-agent", "stethos-eval", "stethos-collectives")
_SPY_S = 20.0
_AGENT_S = 5.0
_ATTEMPTS = 3
_STILL_S = 0.004


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One frame; `lineno` is the line it is at now, 0 if unknown."""

    func: str
    file: str
    lineno: int
    is_native: bool = False


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread's frames, innermost first."""

    thread: str
    thread_id: int | None
    os_thread_id: int | None
    is_main: bool
    has_gil: bool
    is_idle: bool
    frames: tuple[StackFrame, ...]
    source: Source = "py-spy"


def thread_stacks(pid: int, native: bool = False) -> tuple[ThreadStack, ...]:
    """Every thread of a process, the main one first; a StethosError says what is in the way.

    Works while the process holds the GIL or sits in C. With `native` also the frames of C, for which the process is
    paused longer.
    """
    if start_ticks(pid) is None:
        raise RunNotFoundError(f"no process with pid {pid}", hint="list what is alive with `stethos ls`")
    threads, trouble = _spied(pid, native)
    if threads is None:
        process = live_process(pid)
        if process is None or not process.has_agent:
            raise LiveError(f"cannot read process {pid}: {trouble}", hint=why_not_readable(pid))
        threads = ask(process, "stacks", timeout_s=_AGENT_S)["threads"]
        return _stacks(pid, threads, "agent")
    return _stacks(pid, threads, "py-spy")


def _spied(pid: int, native: bool) -> tuple[list[dict[str, Any]] | None, str]:
    """py-spy's reading, or what it said."""
    spy = find_spy()
    if spy is None:
        return None, "py-spy is not installed"
    flags = ["--native"] if native else []
    trouble = ""
    before = _activity(pid) if not native else None
    if before is not None:
        time.sleep(_STILL_S)
    if before is not None and before == _activity(pid):
        threads, trouble = _run(spy, pid, ["--nonblocking"])
        if threads is not None and before == _activity(pid):
            return threads, ""
    for _ in range(_ATTEMPTS):
        threads, trouble = _run(spy, pid, flags)
        if threads is not None or "ermission" in trouble or start_ticks(pid) is None:
            return threads, trouble
    return None, trouble


def _run(spy: str, pid: int, flags: list[str]) -> tuple[list[dict[str, Any]] | None, str]:
    command = [spy, "dump", "--json", "--pid", str(pid), *flags]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SPY_S)
    except subprocess.TimeoutExpired:
        return None, f"py-spy took longer than {_SPY_S:g} s"
    except OSError as error:
        return None, f"py-spy cannot be run: {error.strerror}"
    try:
        threads = json.loads(result.stdout)
    except ValueError:
        threads = None
    if result.returncode or not isinstance(threads, list):
        return None, spoken(result.stderr) or f"py-spy ended with status {result.returncode}"
    return threads, ""


def spoken(stderr: str) -> str:
    """What py-spy says is wrong and why, in one line, without the words around it and its own stack."""
    before, _, _ = stderr.partition("Stack backtrace:")
    lines = [re.sub(r"^(Error:|\d+:)\s*", "", line.strip()) for line in before.splitlines()]
    said = [line.rstrip(".:") for line in lines if line and line != "Caused by:"]
    return ": ".join(list(dict.fromkeys(said))[:3])


def find_spy() -> str | None:
    """The program py-spy: beside this interpreter, else on the path; None if it is not installed."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _activity(pid: int) -> list[bytes] | None:
    """What tells whether any thread ran meanwhile; None if one runs right now."""
    marks = []
    try:
        for task in sorted(os.listdir(f"/proc/{pid}/task")):
            text = Path(f"/proc/{pid}/task/{task}/status").read_bytes()
            lines = [line for line in text.splitlines() if line.startswith((b"State", b"voluntary", b"nonvoluntary"))]
            if b"R (" in lines[0]:
                return None
            marks += [task.encode(), *lines]
    except (OSError, IndexError):
        return None
    return marks


def _stacks(pid: int, threads: Iterable[dict[str, Any]], source: Source) -> tuple[ThreadStack, ...]:
    found = [_stack(pid, thread, source) for thread in threads if thread.get("thread_name") not in OUR_THREADS]
    kept = [stack for stack in found if stack.frames]
    return tuple(sorted(kept, key=lambda stack: not stack.is_main))


def _stack(pid: int, thread: dict[str, Any], source: Source) -> ThreadStack:
    frames = [
        StackFrame(
            func=str(frame.get("name") or "?"),
            file=str(frame.get("filename") or "?"),
            lineno=int(frame.get("line") or 0),
            is_native=not str(frame.get("filename") or "").endswith(".py") and bool(frame.get("module")),
        )
        for frame in thread.get("frames", ())
    ]
    os_id = thread.get("os_thread_id")
    is_main = os_id == pid if os_id is not None else thread.get("thread_name") == "MainThread"
    name = thread.get("thread_name")
    return ThreadStack(
        thread=str(name or ("MainThread" if is_main else f"thread {os_id or thread.get('thread_id')}")),
        thread_id=thread.get("thread_id"),
        os_thread_id=os_id,
        is_main=is_main,
        has_gil=bool(thread.get("owns_gil")),
        is_idle=not thread.get("active", True),
        frames=tuple(frame for frame in frames if not frame.file.startswith(OUR_DIRECTORY)),
        source=source,
    )
