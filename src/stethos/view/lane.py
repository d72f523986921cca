"""Tracks on which pieces of work follow each other or lie inside each other, and never merely overlap."""

from __future__ import annotations


class Lanes:
    """Gives each piece the first lane that it fits. A lane takes pieces in the order of their starts only."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []  # per lane the ends of what is open, the innermost last
        self._latest: list[int] = []  # per lane the last start

    def place(self, start_ns: int, end_ns: int) -> int:
        """The lane of a piece, from 0."""
        for lane, ends in enumerate(self._open):
            if start_ns < self._latest[lane]:
                continue
            depth = len(ends)
            while depth and ends[depth - 1] <= start_ns:
                depth -= 1
            if not depth or ends[depth - 1] >= end_ns:
                ends[depth:] = [end_ns]
                self._latest[lane] = start_ns
                return lane
        self._open.append([end_ns])
        self._latest.append(start_ns)
        return len(self._open) - 1
