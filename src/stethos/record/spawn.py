"""Starting the drainer, and knowing whether one is at work. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
from pathlib import Path

from stethos.record.border import open_file
from stethos.record.place import RunPlace, host_key
from stethos.settings import drainer_environment, drainer_python

_LOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid
_WHOLE_FILE = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from stethos.record.drainer import main; main()"


def take_lock(path: Path) -> int | None:
    """Hold the lock file for the life of this process; None if somebody else holds it."""
    descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
    if _ask(descriptor, take=True):
        return descriptor
    os.close(descriptor)
    return None


def is_drained(run: RunPlace) -> bool:
    """Whether a drainer of this run is at work on this host.

    Only asks: a lock taken for a moment would be inherited by a child that
    another thread forks just then, and look held for as long as that child lives.
    """
    try:
        descriptor = open_file(run.drainer_lock(host_key()), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _ask(descriptor, take=False)
    finally:
        os.close(descriptor)


def _ask(descriptor: int, *, take: bool) -> bool:
    """Whether the lock is free, taking it if so; without Linux's locks of open files it must be taken to know."""
    try:
        if sys.platform == "linux":
            answer = fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK if take else fcntl.F_OFD_GETLK, _WHOLE_FILE)
            return take or bool(_LOCK.unpack(answer)[0] == fcntl.F_UNLCK)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        pass  # a kernel or file system without them
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def ensure_drainer(run: RunPlace) -> int | None:
    """Start a drainer unless one is at work; return the pid of one that was started.

    It is at work once its imports are done, which takes a second or, on a busy machine, many.

    The shell in between makes it nobody's child: the caller need not reap
    it, and `os.wait()` in a training script never sees it. It has its own
    session, so Ctrl-C does not reach it.
    """
    if is_drained(run):
        return None
    import subprocess

    command = ["/bin/sh", "-c", '"$0" "$@" </dev/null >/dev/null 2>&1 & echo $!',
               drainer_python(), "-P", "-c", _START, str(_PACKAGE_ROOT), str(run.path.resolve())]  # fmt: skip
    with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
        started = subprocess.run(
            command, env=drainer_environment(), start_new_session=True, timeout=5, check=False, cwd="/",
            stdout=subprocess.PIPE,
        )  # fmt: skip
        return int(started.stdout)
    return None
