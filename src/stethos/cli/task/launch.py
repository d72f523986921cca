"""Starts the observed program and stays out of its way: same signals, same exit status."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.text import clean
from stethos.errors import CommandNotFoundError
from stethos.record.border import read_json
from stethos.record.place import ProcessPlace, RunPlace, host_key, is_alive, start_ticks, write_facts
from stethos.record.spawn import ensure_drainer
from stethos.redact import redact_command
from stethos.schema import ROUNDS, STEPS
from stethos.settings import Settings, child_environment, clean_environment, default_runs_dir, wants_verdict
from stethos.wiring import command_line

if TYPE_CHECKING:
    from stethos.archive.follow import ArchiverNote

_RELAYED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_SUPERVISE_S = 0.5
_LEAST_CODE = -6  # SI_TKILL; 0 is SI_USER
_LINGER_S = 0.9
_VERDICT_S = 20.0
_PR_SET_PDEATHSIG = 1


def say(text: str) -> None:
    """One line on stderr, where it does not mix with the program's output."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed, or there is none
        sys.stderr.write(f"stethos: {text}\n")
        sys.stderr.flush()


class Launch:
    """One execution of the program; `place` is None when nothing is recorded."""

    def __init__(self, place: RunPlace | None, settings: Settings, *, quiet: bool) -> None:
        self._place = place
        self.companions: list[list[str]] = []  # commands of ours to start beside the program
        self.archive: str | None = None  # the address to which one of them copies the run
        self._archiver_told: str | None = None
        self.has_verdict = not quiet and settings.site is None and wants_verdict()  # a client's end is not delayed
        self._settings = settings
        self._say: Callable[[str], None] = (lambda _: None) if quiet else say
        self._facts: dict[str, Any] = {}
        self._told: set[tuple[object, bool]] = set()
        self._drainer: tuple[int, int] | None = None  # the last one we started: its pid, and when it began

    def execute(self, command: list[str], is_python: bool) -> int:
        """Run the command to its end; die of the same signal if it died of one."""
        environment = None
        if self._place is not None:
            self._enrol(command)
            self._keep_drainer()
            environment = child_environment(self._settings, mark_main=is_python)
            self._say(f"recording to {_shown(self._place.path)}")
            self._start_companions()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _RELAYED | {signal.SIGCHLD})
        on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the exit status with it
        try:
            child = _start(command, environment, mask, on_child)
            self._facts["child_pid"] = child.pid
            self._write_facts()
            code = self._wait(child)
            if self._place is not None:
                self._finish(code)
            while signal.sigtimedwait(_RELAYED, 0) is not None:
                pass  # too late for the program, and not meant for us
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if code < 0:
            _die_of(-code)
        return code if code >= 0 else 128 - code

    def _start_companions(self) -> None:
        """Processes of their own look at the run until it has ended, and may outlive us by their last words."""
        for words in self.companions:
            with contextlib.suppress(OSError):
                subprocess.Popen(
                    [*command_line(), *words], stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip

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
                write_facts(self._place.path / f"launcher-{os.getpid()}.json", self._facts)

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
            if information is None or information.si_signo not in awaited:  # Python fills in nothing after a long stop
                self._keep_drainer()
                self._tell_hangs()
                self._tell_archiver()
            elif is_sent(information):
                child.send_signal(information.si_signo)

    def _keep_drainer(self) -> None:
        """Start a drainer if there is none; one that we have started may take a while until it is at work."""
        if self._place is None or not self._place.exists() or (self._drainer and is_alive(*self._drainer)):
            return
        with contextlib.suppress(OSError):  # the directory is full or read-only; the program goes on
            pid = ensure_drainer(self._place)
            ticks = start_ticks(pid) if pid else None
            self._drainer = (pid, ticks) if pid and ticks else None

    def _tell_hangs(self) -> None:
        """Say what the watchdog has found since the last time."""
        if self._place is None:
            return
        told = read_json(self._place.path / f"hang-{host_key()}.json").get("hangs")
        for hang in [one for one in told if isinstance(one, dict)] if isinstance(told, list) else ():
            number, is_over = hang.get("hang"), bool(hang.get("is_over"))
            if (number, is_over) in self._told or hang.get("t_ns", 0) < self._facts["started_ns"]:
                continue
            if (number, False) not in self._told:
                self._say(f"hang {number}: {clean(str(hang.get('title')))}")
                self._say(f"next: {clean(str(hang.get('next_step')))}")
            if is_over:
                self._say(f"hang {number} is over: the training goes on")
            self._told |= {(number, is_over), (number, False)}

    def _tell_archiver(self) -> None:
        """Say once why the run cannot be archived, and when it can again."""
        note = self._archiver_note()
        if note is None or note.reason == self._archiver_told:
            return
        if note.reason is None:
            self._say(f"archiving to {clean(note.address)} works again")
        else:
            self._say(f"not archived: {clean(note.reason)}; the training goes on, and so do attempts to archive it")
        self._archiver_told = note.reason

    def _archiver_note(self) -> ArchiverNote | None:
        """What the archiver of this launch has noted last."""
        if self._place is None or self.archive is None:
            return None
        from stethos.archive.follow import note_of

        note = note_of(self._place)
        return note if note is not None and note.t_ns > self._facts["started_ns"] else None

    def _say_where_archived(self) -> None:
        """The archiver outlives us by its last upload."""
        assert self._place is not None
        if self.archive is None:
            return
        note = self._archiver_note()
        again = f"stethos archive -t {shlex.quote(_shown(self._place.path))} --to {shlex.quote(clean(self.archive))}"
        if note is not None and note.reason is not None:
            self._say(f"not archived: {clean(note.reason)}; tried again for ten minutes; after that: {again}")
        else:
            self._say(f"the last rows go to {clean(self.archive)} in the background")

    def _verdict(self) -> str:
        """The verdict on the run in one line; "" if the run goes on elsewhere, it takes too long or Ctrl-C comes."""
        assert self._place is not None
        if not self.has_verdict or any(
            is_alive(one.facts()["pid"], one.facts().get("start_ticks"))
            for one in self._place.processes()
            if one.facts().get("host_key") == host_key()
        ):
            return ""
        words = [*command_line(), "diagnose", "--brief", "-t", str(self._place.path)]
        deadline = time.monotonic() + _VERDICT_S
        with contextlib.suppress(OSError):
            asked = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL, text=True, env=clean_environment())  # fmt: skip
            while asked.poll() is None and time.monotonic() < deadline:
                if signal.sigtimedwait(_RELAYED, 0.05) is not None:
                    break
            if asked.poll() is None:
                asked.kill()
            text = (asked.communicate()[0] or "").strip()
            return text if asked.returncode in (0, 1) else ""
        return ""

    def _finish(self, code: int) -> None:
        """Note how it ended, wait a moment for the last rows to be stored, and say where they are."""
        assert self._place is not None
        if not self._place.exists():
            self._say(f"{_shown(self._place.path)} was deleted during the run: nothing was kept")
            return
        self._facts["exit_code"] = code
        self._write_facts()
        deadline = time.monotonic() + _LINGER_S
        if not all(map(_is_settled, self._place.processes())):
            self._keep_drainer()  # it may have died a moment ago, and nobody else would notice
        while time.monotonic() < deadline and not all(map(_is_settled, self._place.processes())):
            time.sleep(0.03)
        self._facts["ended_ns"] = time.time_ns()
        self._write_facts()
        from stethos.store.process import ProcessReader
        from stethos.store.sealed import SealChecker

        steps, dropped, rounds, waiting = 0, 0, 0, 0
        readers = [ProcessReader(process) for process in self._place.processes()]
        for reader in readers:
            reader.refresh()
            counters, stored = reader.counters, reader.rows_by_table(SealChecker())
            steps += max(counters.steps if counters else 0, stored.get(STEPS.name, 0))
            rounds += stored.get(ROUNDS.name, 0)
            dropped += sum(counters.drops.values()) if counters else 0
            waiting += 0 if reader.has_ended else reader.waiting
        if not readers:
            self._say("no Python process was observed to train, to log or to take part in a federation")
        elif steps or rounds:
            lost = f", {dropped:,} rows dropped (see `stethos doctor`)" if dropped else ""
            shown = _shown(self._place.path)
            is_usual = str(default_runs_dir() / self._place.name) in (shown, str(self._place.path))
            target = self._place.name if is_usual else shown
            counted = f"{steps:,} steps" if steps else f"{rounds:,} round{'s' if rounds > 1 else ''}"
            self._say(f"{counted} recorded{lost}; look: stethos diagnose -t {shlex.quote(target)}")
            if verdict := self._verdict():
                self._say(verdict)
        elif waiting:
            self._say("the last rows are still being stored; `stethos doctor` says what was recorded")
        else:
            self._say("no optimizer step was seen; `stethos doctor` says what was recorded and why")
        self._say_where_archived()


def is_sent(information: signal.struct_siginfo) -> bool:
    """Whether somebody sent us a signal that we relay.

    A terminal sends its own to the program as well. Where the wait was over while we were stopped (SIGSTOP, Ctrl-Z),
    CPython tells of a signal that never came, with numbers that mean nothing.
    """
    return information.si_signo in _RELAYED and _LEAST_CODE <= information.si_code <= 0


def _shown(path: Path) -> str:
    with contextlib.suppress(ValueError, OSError):  # elsewhere, or the program has deleted where we are
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _is_settled(process: ProcessPlace) -> bool:
    """Whether there is nothing to wait for: it is collected, goes on, or is on another machine."""
    facts = process.facts()
    if facts.get("host_key") != host_key() or is_alive(facts["pid"], facts.get("start_ticks")):
        return True
    return "ended" in process.manifest()


def _start(command: list[str], environment: dict[str, str] | None, mask: Any, on_child: Any) -> subprocess.Popen[bytes]:
    """Start the program as our caller would have: a file without a format goes to the shell."""
    parent = os.getpid()

    def start(words: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, env=environment, preexec_fn=lambda: _in_child(mask, on_child, parent))

    try:
        return start(command)
    except OSError as error:
        path = shutil.which(command[0])
        if error.errno == errno.ENOEXEC and path is not None:
            return start(["/bin/sh", path, *command[1:]])
        raise CommandNotFoundError(f"cannot execute {command[0]!r}: {error.strerror}") from None


def _in_child(mask: Any, on_child: Any, parent: int) -> None:
    """Between fork and exec: the signal mask of our caller, and death together with our parent."""
    signal.signal(signal.SIGCHLD, on_child or signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
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
