"""What evaluated code prints, caught by thread: other threads' output goes where it always went."""

from __future__ import annotations

import sys
import threading
from typing import Any, TextIO

LARGEST_OUTPUT = 1_000_000


class CaughtOutput:
    """Text up to a limit, and how much was left out."""

    def __init__(self, limit: int = LARGEST_OUTPUT) -> None:
        self._parts: list[str] = []
        self._room = limit
        self.dropped = 0

    def write(self, text: str) -> int:
        kept = text[: self._room]
        if kept:
            self._parts.append(kept)
            self._room -= len(kept)
        self.dropped += len(text) - len(kept)
        return len(text)

    def text(self) -> str:
        return "".join(self._parts)


class _Divided:
    """Stands in for `sys.stdout` or `sys.stderr` while somebody's output is being caught."""

    def __init__(self, original: TextIO | None, by_thread: dict[int, CaughtOutput]) -> None:
        self.original = original
        self._by_thread = by_thread

    def write(self, text: str) -> int:
        caught = self._by_thread.get(threading.get_ident())
        if caught is not None:
            return caught.write(text)
        return self.original.write(text) if self.original is not None else len(text)

    def flush(self) -> None:
        if threading.get_ident() not in self._by_thread and self.original is not None:
            self.original.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


class OutputCatcher:
    """Catches the output of threads; the streams are replaced only while there is something to catch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_thread: dict[int, CaughtOutput] = {}
        self._out: Any = None
        self._err: Any = None

    def begin(self, caught: CaughtOutput) -> None:
        """From now on what this thread writes goes to `caught`."""
        with self._lock:
            self._by_thread[threading.get_ident()] = caught
            if self._out is None:
                self._out, self._err = _Divided(sys.stdout, self._by_thread), _Divided(sys.stderr, self._by_thread)
                sys.stdout, sys.stderr = self._out, self._err

    def end(self) -> None:
        """This thread writes to the program's streams again."""
        with self._lock:
            self._by_thread.pop(threading.get_ident(), None)
            if not self._by_thread and self._out is not None:
                for name, stand_in in (("stdout", self._out), ("stderr", self._err)):
                    if getattr(sys, name) is stand_in:  # else somebody has put another one in meanwhile
                        setattr(sys, name, stand_in.original)
                self._out = self._err = None


CATCHER = OutputCatcher()
