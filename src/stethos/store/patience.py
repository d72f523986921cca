"""Ends a long call into C at a time limit or at Ctrl-C, whichever comes first.

Python runs signal handlers only between its own instructions, so Ctrl-C
during a query would wait for the query's end. The interpreter does write
arriving signals to a wakeup pipe at once; a thread that listens there stops
the query, and Python then raises KeyboardInterrupt by itself.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stethos.record.border import has_input
from stethos.store.limit import GRACE_S

_DONE = 0  # no signal has this number
_AGAIN_S = 0.05


@contextmanager
def limited(
    interrupt: Callable[[], bool], timeout_s: float, when_stuck: Callable[[], object] | None = None
) -> Iterator[None]:
    """Call `interrupt` from another thread after `timeout_s`, or when a SIGINT comes to the main thread.

    It says whether there is still anything to interrupt: Ctrl-C may strike in
    our own clean-up, too, and then nobody tells the thread that all is over.
    What goes on for some seconds all the same is `when_stuck`.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    is_main = threading.current_thread() is threading.main_thread()
    previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False) if is_main else -1

    def listen() -> None:
        while has_input(read_end, timeout_s):
            numbers = os.read(read_end, 64)
            if _DONE in numbers:
                return
            if previous != -1:
                os.write(previous, numbers)
            if signal.SIGINT in numbers:
                break
        stuck_at = time.monotonic() + GRACE_S
        while interrupt():  # one that comes just before the query begins is lost, so go on until it ends
            if has_input(read_end, _AGAIN_S) and _DONE in os.read(read_end, 64):
                return
            if when_stuck is not None and time.monotonic() > stuck_at:
                when_stuck()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield
    finally:
        if is_main:
            signal.set_wakeup_fd(previous)
        os.write(write_end, bytes([_DONE]))
        listener.join()
        os.close(read_end)
        os.close(write_end)
