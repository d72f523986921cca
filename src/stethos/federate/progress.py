"""One line on a terminal that says how far a federation has come; nothing where stderr is no terminal."""

from __future__ import annotations

import contextlib
import sys
import time

from stethos.clock import monotonic_ns

_BAR = 24
_EVERY_NS = 100_000_000


class Progress:
    """A bar that is drawn anew at most ten times a second, and left standing at the end."""

    def __init__(self, name: str, *, is_on: bool | None) -> None:
        self._name = name
        self._began = time.monotonic()
        self._drawn_ns = 0
        self.is_on = is_on if is_on is not None else bool(sys.stderr and sys.stderr.isatty())
        self._last = ""

    def show(self, done: float, total: int | None, note: str = "", *, is_final: bool = False) -> None:
        """Draw `done` of `total` rounds, with a note behind."""
        now = monotonic_ns()
        if not self.is_on or (now - self._drawn_ns < _EVERY_NS and not is_final):
            return
        self._drawn_ns = now
        share = min(max(done / total, 0.0), 1.0) if total else 0.0
        bar = "━" * round(_BAR * share) + "╌" * (_BAR - round(_BAR * share))
        elapsed = time.monotonic() - self._began
        left = f", {elapsed / share * (1 - share):.0f} s left" if share > 0.02 and not is_final else ""
        text = f"{self._name} {bar} round {int(done)}{f'/{total}' if total else ''}  {note}  {elapsed:.0f} s{left}"
        self._write("\r\x1b[2K" + text[:200])

    def end(self) -> None:
        if self._drawn_ns:
            self._write("\n")
            self._drawn_ns = 0

    def _write(self, text: str) -> None:
        if self.is_on:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(text)
                sys.stderr.flush()
