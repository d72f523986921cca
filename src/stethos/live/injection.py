"""Injecting code with hypno at a moment when the process can bear it.

hypno makes the main thread run our code wherever it happens to be. In the middle of an allocation, or of a change to
a dict, that ends in a crash. A thread that waits in a system call has let go of the GIL and of the allocator, so we
wait for such a moment, stop the thread, and look again before anything is run.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

from stethos.errors import LiveError
from stethos.record.place import start_ticks

_PATIENCE_S = 15.0
_LOOK_S = 0.0005
# Waits during which Python lets go of the GIL, by the numbers of their system calls.
_WAITS = {
    "x86_64": {
        "poll": 7, "select": 23, "nanosleep": 35, "accept": 43, "recvfrom": 45, "wait4": 61, "futex": 202,
        "clock_nanosleep": 230, "epoll_wait": 232, "waitid": 247, "pselect6": 270, "ppoll": 271, "epoll_pwait": 281,
        "accept4": 288,
    },
    "aarch64": {
        "epoll_pwait": 22, "pselect6": 72, "ppoll": 73, "waitid": 95, "futex": 98, "nanosleep": 101,
        "clock_nanosleep": 115, "accept": 202, "recvfrom": 207, "accept4": 242, "wait4": 260,
    },
}  # fmt: skip


def inject_safely(pid: int, code: str, is_forced: bool) -> None:
    """Run code in the main thread of a process as soon as that waits; LiveError if it never does.

    With `is_forced` the code is then run all the same, which may end the process.
    """
    import hypno.api
    import pyinjector

    with tempfile.TemporaryDirectory(prefix="stethos-inject-") as scratch:
        library = Path(scratch) / f"library{hypno.api.INJECTION_LIB_PATH.suffix}"
        library.write_bytes(_library_with(code.encode(), hypno.api))
        library.chmod(0o644)
        Path(scratch).chmod(0o755)  # a process of another user's must be able to read it
        deadline = time.monotonic() + _PATIENCE_S
        try:
            while not _try(pid, library, deadline, is_forced, pyinjector):
                pass
        except pyinjector.PyInjectorError as error:
            raise RuntimeError(str(error).splitlines()[0]) from None


def _try(pid: int, library: Path, deadline: float, is_forced: bool, pyinjector: Any) -> bool:
    """Wait for a moment, stop the thread, and use the moment if it is still there."""
    while not is_waiting(pid, must_be_asleep=True):
        if start_ticks(pid) is None:
            raise LiveError(f"process {pid} ended meanwhile")
        if time.monotonic() > deadline:
            if is_forced:
                break
            raise LiveError(
                f"process {pid} computes without a pause: no safe moment to put code into it in {_PATIENCE_S:g} s",
                hint=f"--force does it at any moment, which may crash it; `stethos {pid} backtrace` works as it is",
            )
        time.sleep(_LOOK_S)
    with pyinjector.attach(pid) as injector:
        if not is_waiting(pid, must_be_asleep=False) and not (is_forced and time.monotonic() > deadline):
            return False
        injector.uninject(injector.inject(os.fsencode(library)))
    return True


def is_waiting(pid: int, *, must_be_asleep: bool) -> bool:
    """Whether the main thread is in one of the waits; a thread that we have stopped is not asleep, but still in it."""
    try:
        state = Path(f"/proc/{pid}/task/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        call = Path(f"/proc/{pid}/task/{pid}/syscall").read_text(encoding="utf-8").split()[0]
    except (OSError, IndexError):
        return False
    waits = _WAITS.get(platform.machine(), {}).values()
    return (state == b"S" or not must_be_asleep) and call.isdigit() and int(call) in waits


def _library_with(code: bytes, api: Any) -> bytes:
    """hypno's library with our code in the place that it keeps for it."""
    library: bytes = api.INJECTION_LIB_PATH.read_bytes()
    mark = library.find(api.MAGIC)
    if mark < 1:
        raise ValueError("this version of hypno is not known")
    size_at = mark + len(api.MAGIC)
    room = int(library[size_at : library.find(b"\0", size_at)])
    if len(code) > room:
        raise ValueError(f"code of {len(code):,} bytes does not fit into {room:,}")
    return library[: mark - 1] + code + b"\0" + library[mark + len(code) :]
