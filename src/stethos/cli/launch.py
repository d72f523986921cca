"""Starts the observed program and stays out of its way: same signals, same exit status."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stethos.record.layout import HEADER_BYTES, Word
from stethos.record.place import RunPlace, host_key, start_ticks, write_json
from stethos.record.spawn import ensure_drainer
from stethos.redact import redact_command
from stethos.settings import Settings, child_environment

_RELAYED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_SUPERVISE_S = 0.5
_LINGER_S = 0.9
_PR_SET_PDEATHSIG = 1


def say(text: str) -> None:
    """One line on stderr, where it does not mix with the program's output."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"stethos: {text}\n")
        sys.stderr.flush()


class Launch:
    """One execution of the program; `place` is None when nothing is recorded."""

    def __init__(self, place: RunPlace | None, settings: Settings, *, quiet: bool) -> None:
        self._place = place
        self._settings = settings
        self._say: Callable[[str], None] = (lambda _: None) if quiet else say
        self._facts: dict[str, Any] = {}

    def execute(self, command: list[str], is_python: bool) -> int:
        """Run the command to its end; die of the same signal if it died of one."""
        environment = None
        if self._place is not None:
            self._enrol(command)
            ensure_drainer(self._place)
            environment = child_environment(self._settings, mark_main=is_python)
            self._say(f"recording to {_shown(self._place.path)}")
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _RELAYED | {signal.SIGCHLD})
        parent = os.getpid()
        child = subprocess.Popen(command, env=environment, preexec_fn=lambda: _in_child(blocked, parent))
        self._facts["child_pid"] = child.pid
        self._write_facts()
        code = self._wait(child)
        if self._place is not None:
            self._finish(code)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if code < 0:
            _die_of(-code)
        return code if code >= 0 else 128 - code

    def _enrol(self, command: list[str]) -> None:
        """Tell the drainer that the run goes on as long as this process does."""
        self._facts = {
            "pid": os.getpid(),
            "start_ticks": start_ticks(os.getpid()),
            "host_key": host_key(),
            "command": redact_command(command),
            "started_ns": time.time_ns(),
        }
        self._write_facts()

    def _write_facts(self) -> None:
        if self._place is not None and self._facts:
            with contextlib.suppress(OSError):  # the directory may be gone or full; the program goes on
                write_json(self._place.path / f"launcher-{os.getpid()}.json", self._facts)

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the program, relaying signals meant for it and keeping a drainer at work.

        Signals from the terminal reach the whole process group by themselves;
        only those sent to this process alone are passed on.
        """
        awaited = _RELAYED | {signal.SIGCHLD}
        while True:
            information = signal.sigtimedwait(awaited, _SUPERVISE_S)
            code = child.poll()
            if code is not None:
                return code
            if information is None:
                if self._place is not None and self._place.exists():
                    ensure_drainer(self._place)
            elif information.si_signo != signal.SIGCHLD and information.si_code <= 0:
                child.send_signal(information.si_signo)

    def _finish(self, code: int) -> None:
        """Note how it ended, wait a moment for the last rows to be stored, and say where they are."""
        assert self._place is not None
        if not self._place.exists():
            self._say(f"{_shown(self._place.path)} was deleted during the run: nothing was kept")
            return
        deadline = time.monotonic() + _LINGER_S
        while time.monotonic() < deadline and not all(_is_collected(p.path) for p in self._place.processes()):
            time.sleep(0.03)
        self._facts |= {"exit_code": code, "ended_ns": time.time_ns()}
        self._write_facts()
        steps, dropped = 0, 0
        for process in self._place.processes():
            manifest = process.manifest()
            counters = manifest.get("counters") or _counters_in(process.ring())
            stored = sum(file["rows"] for file in manifest.get("sealed", []) if file["table"] == "steps")
            steps += max(counters.get("steps", 0), stored)
            dropped += sum(counters.get("drops", {}).values())
        if not self._place.processes():
            self._say("no Python process was observed")
        elif steps:
            lost = f", {dropped:,} rows dropped (see `stethos doctor`)" if dropped else ""
            name = self._place.name
            self._say(f"{steps:,} steps recorded{lost}; look: stethos query -t {name} \"SELECT * FROM steps\"")
        else:
            self._say("no optimizer step was seen; `stethos doctor` says what was recorded and why")


def _shown(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _is_collected(process: Path) -> bool:
    return (process / "manifest.json").exists() and not (process / "ring").exists()


def _counters_in(ring: Path) -> dict[str, Any]:
    """The steps counted in a ring's header, read without NumPy."""
    try:
        header = memoryview(ring.read_bytes()[:HEADER_BYTES]).cast("q")
    except OSError:
        return {}
    return {"steps": header[Word.STEPS], "drops": {"all": sum(header[Word.DROPPED : Word.DROPPED + 16])}}


def _in_child(blocked: Any, parent: int) -> None:
    """Between fork and exec: the signal mask of our caller, and death together with our parent."""
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def _die_of(number: int) -> None:
    """End as the program did, without a second core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
