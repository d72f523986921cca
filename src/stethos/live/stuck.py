"""Why a process stands still, read from its stacks and from what the kernel says about its threads."""

from __future__ import annotations

import linecache
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stethos.live.stack import StackFrame, ThreadStack

Cause = Literal[
    "missing-rank", "mismatch", "exchange", "data-loader", "lock", "disk", "client", "gil", "busy", "unknown"
]

_LIBRARY = re.compile(r"/(site-packages|dist-packages)/|/lib/python3|^<|^\?")
_LOADER = re.compile(r"torch/utils/data/")
_LOCKS = re.compile(r"(^|/)(threading|queue|multiprocessing/(synchronize|queues|managers)|concurrent/futures/\w+)\.py$")
_LOCK_WORDS = re.compile(r"\bacquire\b|\bwith\b.*lock|\block\b|\.join\(|\.wait\(|\.get\(|\.result\(", re.IGNORECASE)
_EXCHANGES = frozenset({"send", "recv", "send_object_list", "recv_object_list"})  # between two ranks, blocking
_FEDERATED = re.compile(r"/(flwr|nvflare)/")
_PIPE = re.compile("pipe|fifo|wait_for_partner")  # functions of the kernel
_BUSY = 0.3  # of a core
_LOOKS, _BETWEEN_LOOKS_S = 5, 0.01  # at a thread that is in no system call

# Numbers of system calls on x86-64 and, where they differ, on arm64.
_CALLS = {
    "x86_64": {0: "read", 1: "write", 17: "read", 18: "write", 19: "read", 20: "write", 74: "sync", 75: "sync",
               257: "open", 2: "open", 202: "futex", 230: "sleep", 35: "sleep", 7: "poll", 23: "poll", 270: "poll",
               271: "poll", 232: "poll", 281: "poll", 45: "receive", 47: "receive", 44: "send", 46: "send",
               61: "wait for a child", 247: "wait for a child", 42: "connect", 43: "accept", 288: "accept",
               73: "file lock", 72: "file lock", 58: "start of a program", 435: "start of a program",
               56: "start of a program"},
    "aarch64": {63: "read", 64: "write", 67: "read", 68: "write", 82: "sync", 83: "sync", 56: "open", 98: "futex",
                115: "sleep", 101: "sleep", 72: "poll", 73: "poll", 22: "poll", 207: "receive", 212: "receive",
                206: "send", 211: "send", 260: "wait for a child", 95: "wait for a child", 203: "connect",
                202: "accept", 32: "file lock", 25: "file lock", 220: "start of a program",
                435: "start of a program"},
}  # fmt: skip
_RESUMED = {"x86_64": 219, "aarch64": 128}
_PATH_AT = {"x86_64": {2: 1, 257: 2}, "aarch64": {56: 2}}  # which argument of a call that opens is the path
_LONGEST_PATH = 512
_ON_DESCRIPTOR = ("read", "write", "sync", "receive", "send", "file lock")


@dataclass(frozen=True, slots=True)
class Wait:
    """What a thread does in the kernel: its state, the system call, and what that is about."""

    state: str = "?"
    call: str = ""
    about: str = ""

    @property
    def is_on_disk(self) -> bool:
        is_file = self.about.startswith("/") and not self.about.startswith(("/dev/", "/proc/"))
        return self.state == "D" or (self.call in ("read", "write", "sync", "open") and is_file)

    @property
    def words(self) -> str:
        """`read of /data/part-7`; empty if the call is not known."""
        return f"{self.call} of {self.about}" if self.call and self.about else self.call


@dataclass(frozen=True, slots=True)
class ObservedProcess:
    """One process, looked at twice: its stacks, and what its training thread did meanwhile."""

    threads: tuple[ThreadStack, ...]
    later: tuple[ThreadStack, ...]
    wait: Wait = Wait()
    cpu_share: float = 0.0

    @property
    def is_moving(self) -> bool:
        """Whether its training went on between the two looks."""
        before, after = training_thread(self.threads), training_thread(self.later)
        return before is None or after is None or before.frames != after.frames

    @property
    def is_at_prompt(self) -> bool:
        """Whether it waits for somebody at the keyboard: a debugger's prompt, a question."""
        return self.wait.call in ("read", "poll") and self.wait.about.startswith(("/dev/pts/", "/dev/tty"))

    @property
    def is_busy(self) -> bool:
        return self.cpu_share >= _BUSY


@dataclass(frozen=True, slots=True)
class StallCause:
    """Why one process stands still: a cause, the place, and a sentence without its subject."""

    cause: Cause
    place: str
    words: str


def training_thread(threads: Sequence[ThreadStack]) -> ThreadStack | None:
    """The thread that trains: the main one, unless that only waits for another one that has torch on its stack."""
    main = next((one for one in threads if one.is_main), threads[0] if threads else None)
    if main is None or not main.frames or any(_is_torch(frame) for frame in main.frames):
        return main
    if _LOCKS.search(main.frames[0].file):
        return next((one for one in threads if any(_is_torch(frame) for frame in one.frames)), main)
    return main


def judge(look: ObservedProcess, client: str = "", workers: Sequence[str] = ()) -> StallCause:
    """The cause for one process. `client` is a federated client whose turn is open, `workers` where those of its
    data loader stand."""
    thread = training_thread(look.later) or training_thread(look.threads)
    if thread is None:
        return StallCause("unknown", "?", "is standing still; its stack cannot be read")
    place = place_of(thread)
    holder = next((one for one in look.later if one.has_gil), None)
    if look.is_busy:
        return StallCause("busy", place, f"has been busy in {place} all the time")
    if look.wait.state in ("T", "t"):
        return StallCause("unknown", place, f"was stopped by a signal or a debugger, in {place}")
    if look.wait.is_on_disk:
        about = f" ({look.wait.words})" if look.wait.words else ""
        return StallCause("disk", place, f"waits for the disk in {place}{about}")
    exchange = next((frame.func for frame in thread.frames if _is_exchange(frame)), "")
    if exchange:
        return StallCause("exchange", place, f"waits in `{exchange}` for another rank, in {place}")
    loader = [frame for frame in thread.frames if _LOADER.search(frame.file)]
    if loader:
        where = f"; its workers: {', '.join(dict.fromkeys(workers))}" if workers else ""
        return StallCause("data-loader", place, f"waits for its data loader in {place}{where}")
    if holder is not None and holder.frames:
        held = place_of(holder)
        name = "" if holder.is_main else f" of thread {holder.thread}"
        return StallCause("gil", held, f"stands in C code{name} that holds the GIL, called by {held}")
    if client or any(_FEDERATED.search(frame.file) for frame in thread.frames):
        whom = f"client {client}" if client else "its clients"
        return StallCause("client", place, f"waits for {whom}, in {place}")
    if look.wait.call == "file lock":
        about = f" of {look.wait.about}" if look.wait.about else ""
        return StallCause("lock", place, f"waits for the lock{about} that another process holds, in {place}")
    if _is_at_lock(thread, look.wait):
        return StallCause("lock", place, f"waits for a lock or another thread in {place}")
    if look.wait.call == "sleep":
        return StallCause("unknown", place, f"sleeps in {place}")
    doing = f" ({look.wait.words})" if look.wait.words else ""
    return StallCause("unknown", place, f"stands in {place}{doing}")


def place_of(thread: ThreadStack) -> str:
    """The innermost frame of the program itself, else the innermost of all: `function (file.py:12)`."""
    if not thread.frames:
        return "?"
    own = next((frame for frame in thread.frames if not _is_library(frame)), thread.frames[0])
    return f"{own.func} ({os.path.basename(own.file)}:{own.lineno})"


def wait_of(pid: int, thread: int | None) -> Wait:
    """What a thread waits for, as far as the kernel tells this user."""
    task = Path(f"/proc/{pid}/task/{thread or pid}")
    try:
        state = (task / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return Wait()
    words = _system_call(task)
    if not words:
        return Wait(state)
    number = int(words[0])
    machine = os.uname().machine
    call = _CALLS.get(machine, {}).get(number, f"system call {number}")
    if number == _RESUMED.get(machine):
        return Wait(state)  # a call that was interrupted goes on; the kernel does not tell which
    about = ""
    if call in _ON_DESCRIPTOR:
        about = _link(f"/proc/{pid}/fd/{int(words[1], 16)}")
    elif call == "open":
        path = _text_at(pid, int(words[_PATH_AT[machine][number]], 16))
        about = os.path.join(_link(f"/proc/{pid}/cwd"), path) if path else ""
    is_pipe = about.startswith("/") and bool(_PIPE.search(_kernel_function(task)))
    return Wait(state, call, f"the pipe {about}" if is_pipe else about)


def _system_call(task: Path) -> list[str]:
    """Number and arguments of the system call that a thread is in; [] if it is in none, or that may not be read.

    A thread whose stack was just read is on its way back into its call for a moment: who runs is looked at again.
    """
    for _ in range(_LOOKS):
        try:
            words = (task / "syscall").read_text(encoding="ascii").split()
        except OSError:
            return []
        if len(words) >= 2 and words[0].isdigit():
            return words
        time.sleep(_BETWEEN_LOOKS_S)
    return []


def _link(path: str) -> str:
    """What a link in /proc points to; the file itself is not touched, for its disk may hang."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _kernel_function(task: Path) -> str:
    try:
        return (task / "wchan").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _text_at(pid: int, address: int) -> str:
    """The text at an address of another process, as far as we may read it."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(_LONGEST_PATH).partition(b"\0")[0].decode("utf-8", "replace")
    except (OSError, ValueError, OverflowError):
        return ""


def _is_at_lock(thread: ThreadStack, wait: Wait) -> bool:
    """In Python's own lock code, or in C on a futex at a line that names a lock."""
    innermost = thread.frames[0]
    if _LOCKS.search(innermost.file):
        return True
    line = linecache.getline(innermost.file, innermost.lineno)
    return wait.call in ("futex", "") and bool(_LOCK_WORDS.search(line))


def _is_torch(frame: StackFrame) -> bool:
    return "/torch/" in frame.file


def _is_exchange(frame: StackFrame) -> bool:
    return frame.func in _EXCHANGES and frame.file.endswith("/torch/distributed/distributed_c10d.py")


def _is_library(frame: StackFrame) -> bool:
    return frame.is_native or bool(_LIBRARY.search(frame.file))
