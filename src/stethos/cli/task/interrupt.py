"""Ctrl-C ends a command even while a library waits for an object store, in which no line of Python runs."""

from __future__ import annotations

import os
import signal
import threading
import time

INTERRUPTED = 130
_AFTER_S = 3.0  # for the command itself to end; what an interrupted upload has left is taken up by the next one


def end_on_interrupt() -> None:
    """End the process some seconds after a SIGINT, if it has not ended by then. Only for the process of a command."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def listen() -> None:
        while signal.SIGINT not in os.read(read_end, 64):
            pass
        time.sleep(_AFTER_S)
        os._exit(INTERRUPTED)

    threading.Thread(target=listen, daemon=True).start()
