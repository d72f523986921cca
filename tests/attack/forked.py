"""Tries in processes of their own, forked from one that has imported all there is: many in a second.

What is measured is the process alone, as the kernel counts it: its CPU time, its largest memory, how it ended, and
what it left running. Some tries share a process, since a fork costs as much as a short command; where anything is
wrong with that process, each of them is tried again alone.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from attack.outcome import Outcome

Try = TypeVar("Try")
MOST_CPU_S = 10.0
MOST_MB = 1024.0
LONGEST_S = 300.0  # of waiting, where other processes have the processor
MOST_STILL_S = 120.0  # without any CPU time of its own: it waits for what never comes
_LOOK_S = 5.0
_BE_PARENT = 36  # PR_SET_CHILD_SUBREAPER
_SHOWN = 600
_TELL_EVERY = 200


class Forked:
    """A process that did `work`, and what is wrong about how: words that `work` returned, limits that it passed."""

    def __init__(self, work: Callable[[], str | None], *, tries: int = 1) -> None:
        self.cpu_s = self.most_mb = 0.0
        self.wrong: list[str] = []
        self._most_cpu_s = MOST_CPU_S * tries
        ctypes.CDLL(None).prctl(_BE_PARENT, 1, 0, 0, 0)  # what it leaves running becomes ours
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _work(work, writer, int(self._most_cpu_s) + 5)
        os.close(writer)
        self._wait(child, reader, LONGEST_S * tries)
        self._look_for_orphans()

    def _wait(self, child: int, reader: int, longest_s: float) -> None:
        told, ends = b"", time.monotonic() + longest_s
        seen_s, since = -1.0, time.monotonic()
        watched, heard = os.pidfd_open(child), [reader]
        try:
            while not select.select([watched], [], [], 0)[0]:
                used_s, now = _cpu_s(child), time.monotonic()
                if used_s != seen_s:
                    seen_s, since = used_s, now
                if now > ends or now - since > MOST_STILL_S:
                    os.kill(child, signal.SIGKILL)
                    stands = f", still for {now - since:.0f} s" if now - since > MOST_STILL_S else ""
                    self.wrong.append(f"not at its end after {longest_s - (ends - now):.0f} s{stands}")
                    break
                if reader in select.select([watched, *heard], [], [], min(ends - now, _LOOK_S))[0]:
                    piece = os.read(reader, 1 << 16)
                    told += piece
                    if not piece:
                        heard = []
        finally:
            os.close(watched)
        os.set_blocking(reader, False)
        with suppress(BlockingIOError):
            told += os.read(reader, 1 << 16)
        os.close(reader)
        _, status, usage = os.wait4(child, 0)
        self.cpu_s, self.most_mb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
        if told:
            self.wrong.append(told.decode("utf-8", "replace").replace("\n", " "))
        if status:
            self.wrong.append(f"ended with {os.waitstatus_to_exitcode(status)}")
        if self.cpu_s > self._most_cpu_s:
            self.wrong.append(f"{self.cpu_s:.1f} s of CPU")
        if self.most_mb > MOST_MB:
            self.wrong.append(f"{self.most_mb:.0f} MB")

    def _look_for_orphans(self) -> None:
        with suppress(ChildProcessError):
            while True:
                left, _ = os.waitpid(-1, os.WNOHANG)
                if not left:
                    break
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            left_running = [int(word) for word in file.read().split()]
        for pid in left_running:
            with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().replace(b"\0", b" ").decode("utf-8", "replace")
                if "multiprocessing.resource_tracker" in words:  # Python's own, perhaps ours: it ends by itself
                    continue
                self.wrong.append(f"left running: {words[-200:]}")
            os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _work(work: Callable[[], str | None], writer: int, limit_s: int) -> None:
    """Inside the new process, which ends here."""
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        told = work() or ""
        os.write(writer, told.encode("utf-8", "replace")[:_SHOWN])
        os._exit(0)
    except BaseException:
        os.write(writer, traceback.format_exc()[-_SHOWN:].encode("utf-8", "replace"))
    finally:
        os._exit(9)


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def do_together(outcome: Outcome, tries: Sequence[Try], do: Callable[[Try], str | None]) -> None:
    """Do tries in one process; if it has anything to say, each in a process of its own, and count what those say."""

    def all_of_them() -> str:
        return "; ".join(told for one in tries if (told := do(one)))

    together = Forked(all_of_them, tries=len(tries))
    outcome.tries += len(tries)
    if outcome.tries % _TELL_EVERY < len(tries):
        sys.stderr.write(f"{outcome.tries:,} tries, {len(outcome.failures)} failures\n")
    outcome.most("largest MB", together.most_mb)
    if not together.wrong:
        return
    found = [f"{one}: {'; '.join(alone.wrong)}" for one in tries if (alone := Forked(lambda t=one: do(t))).wrong]  # type: ignore[misc]
    for one in found:
        sys.stderr.write(f"{one}\n")
    outcome.failures += found or [f"{tries}, only together: {'; '.join(together.wrong)}"]


def import_what(work: Callable[[], object]) -> list[str]:
    """Import all that `work` imports, without having done it: a process that forks shall have no threads."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            os.close(reader)
            with open(writer, "w", encoding="utf-8") as file:
                file.write("\n".join(sys.modules))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        names = file.read().split()
    os.waitpid(child, 0)
    import_all(names)
    return names


def import_all(names: Sequence[str]) -> None:
    """Import these modules, those that can be."""
    for name in names:
        if not name.startswith("__"):
            with suppress(Exception):  # a module of a package that puts other names among the modules
                importlib.import_module(name)
