"""Functions of the user's own: found by name, called with a time limit and as many threads as in the recording."""

from __future__ import annotations

import bdb
import contextlib
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stethos.errors import ReplayError, UsageError
from stethos.guard import tried


def function_named(text: str) -> Callable[..., Any]:
    """`module:function`, imported from where the user is; a file's path may stand for the module."""
    place, _, name = text.partition(":")
    if not place or not name:
        raise UsageError(f"not a function: {text!r}", hint="write module:function, such as train:local_training")
    if place.endswith(".py"):
        path = Path(place).absolute()
        sys.path.insert(0, str(path.parent))
        place = path.stem
    elif "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(place)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot import {text}: {error}", hint="the module must be importable from here") from None
    if not callable(found):
        raise UsageError(f"{text} is a {type(found).__name__}", hint="name a function")
    made: Callable[..., Any] = found
    return made


@contextlib.contextmanager
def threads(count: Any) -> Iterator[None]:
    """Sums depend on how many threads share them: as many as in the recording."""
    import torch

    before = torch.get_num_threads()
    if isinstance(count, int) and 0 < count <= 1024:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def called(what: str, timeout_s: float | None, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the user's; ReplayError with its last line if it raises, or if it takes too long."""
    with _deadline(what, timeout_s):
        made, error = tried(function, *args)
    if error is not None:
        raise error if isinstance(error, ReplayError | bdb.BdbQuit) else failure_of(what, error) from error
    return made


def failure_of(what: str, error: Exception) -> ReplayError:
    """The error of a function of the user's, with the line that raised it."""
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" at {last[0].filename}:{last[0].lineno}" if last else ""
    words = f"{what} raised {type(error).__name__}: {str(error)[:500]}{where}"
    return ReplayError(words, hint="look at it in `stethos debug` with the commands in and pdb")


@contextlib.contextmanager
def _deadline(what: str, timeout_s: float | None) -> Iterator[None]:
    """Raise out of code that does not come back; only the main thread can be told."""
    if timeout_s is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise ReplayError(f"{what} did not come back within {timeout_s:g} s", hint="allow more with --timeout SECONDS")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
