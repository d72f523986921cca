"""Stopping code that runs too long, in its own thread, without a trace function.

On the main thread a free real-time signal is used for the time being: its
handler raises, which also ends a sleep or a wait for a lock. On other threads
the interpreter is asked to raise, which happens at the next instruction of
Python, so a wait in C is not ended.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from types import FrameType

FILE = __file__


class TimeLimitError(BaseException):
    """Raised inside code that has run too long; no `except Exception` of that code catches it."""


class Interruptible:
    """Enter it on the thread that runs the code; `interrupt` from any other.

    An interrupt can come between entering and leaving only: never to what
    the thread does afterwards. On the main thread it does not come to lines
    of `own_files` either, which stand between entering and the code.
    """

    def __init__(self, *own_files: str) -> None:
        self._own_files = own_files
        self._lock = threading.Lock()
        self._thread = 0
        self._signal = 0
        self._is_running = False

    def enter(self) -> None:
        self._thread = threading.get_ident()
        if threading.current_thread() is threading.main_thread():
            self._signal = _free_signal()
            if self._signal:
                signal.signal(self._signal, self._on_signal)
        self._is_running = True

    def leave(self) -> None:
        while self._is_running:
            try:
                with self._lock:
                    self._is_running = False
            except TimeLimitError:
                continue
        try:
            if self._signal:
                signal.signal(self._signal, signal.SIG_IGN)  # one on its way is dropped
                signal.signal(self._signal, signal.SIG_DFL)
            else:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), None)
        except TimeLimitError:
            self.leave()

    def interrupt(self) -> None:
        """Raise TimeLimitError in the code, if it still runs."""
        with self._lock:
            if not self._is_running:
                return
            if self._signal:
                signal.pthread_kill(self._thread, self._signal)
            else:
                error = ctypes.py_object(TimeLimitError)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), error)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Raise in the code, or in what it calls; not in our own lines around it, from where it would get out."""
        is_ours = frame is not None and frame.f_code.co_filename in (FILE, *self._own_files)
        if self._is_running and not is_ours:
            raise TimeLimitError


def _free_signal() -> int:
    """A real-time signal that nobody handles; 0 if there is none."""
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(number) == signal.SIG_DFL:
            return number
    return 0
