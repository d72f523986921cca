"""Starting the drainer, and knowing whether one is at work. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from pathlib import Path

from stethos.record.place import RunPlace, host_key
from stethos.settings import clean_environment, drainer_python

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from stethos.record.drainer import main; main()"


def take_lock(path: Path) -> int | None:
    """Hold the lock file for the life of this process; None if somebody else holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_drained(run: RunPlace) -> bool:
    """Whether a drainer of this run is at work on this host."""
    descriptor = take_lock(run.drainer_lock(host_key()))
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def ensure_drainer(run: RunPlace) -> bool:
    """Start a drainer unless one is at work; return whether one was started.

    The shell in between makes it nobody's child: the caller need not reap
    it, and `os.wait()` in a training script never sees it. It has its own
    session, so Ctrl-C does not reach it.
    """
    if is_drained(run):
        return False
    command = ["/bin/sh", "-c", '"$0" "$@" </dev/null >/dev/null 2>&1 &',
               drainer_python(), "-c", _START, str(_PACKAGE_ROOT), str(run.path.resolve())]  # fmt: skip
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, env=clean_environment(), start_new_session=True, timeout=5, check=False, cwd="/")
    return True
