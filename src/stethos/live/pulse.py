"""Whether a process makes progress, felt from outside: by the header of its ring, and by what it reads and writes."""

from __future__ import annotations

import statistics
from collections import deque
from pathlib import Path
from typing import NamedTuple

from stethos.store.boards import RankBoard

_SAMPLES = 64
_FEW_STEPS = 3
_MOVED_BYTES = 1 << 20  # read or written within a second: a checkpoint, or data
_QUIET_S = 2.0
_MOST_PAUSES = 10.0


class SilenceLimits(NamedTuple):
    """When silence becomes suspicious: at least so long, and so many times the usual step. 0 s switches it off."""

    at_least_s: float = 30.0
    times: float = 30.0


class Pulse:
    """The progress of one process."""

    def __init__(self, now: float) -> None:
        self.last_sign = self.last_step = now
        self.longest_s = 0.0
        self.not_before = 0.0  # it was looked at, and moved: not again until then
        self.is_hung = False  # a pause that was a hang is no measure for others
        self._signs: tuple[object, ...] | None = None
        self._steps = 0
        self._last_step_ns = 0
        self._step_s: deque[float] = deque(maxlen=_SAMPLES)
        self._bytes = 0
        self._bytes_at = 0.0

    def feel(self, board: RankBoard, now: float) -> None:
        """Look at the process; called about twice a second."""
        if board.steps > self._steps:
            if self._steps and board.last_step_ns > self._last_step_ns:
                self._step_s.append((board.last_step_ns - self._last_step_ns) / 1e9 / (board.steps - self._steps))
            self._steps, self._last_step_ns = board.steps, board.last_step_ns
            self.last_step = now
        signs = (board.steps, board.batches, tuple((one.begun, one.complete) for one in board.groups))
        if signs != self._signs:
            self._signs = signs
            self._sign(now, board)
        elif now - self.last_sign > _QUIET_S and self._has_moved_bytes(board.pid, now):
            self._sign(now, board)

    def silent_s(self, now: float) -> float:
        return now - self.last_sign

    def limit_s(self, limits: SilenceLimits, board: RankBoard) -> float | None:
        """How long it may be silent; None as long as it is not known to train."""
        if board.steps < _FEW_STEPS:
            return 2 * limits.at_least_s if board.groups else None
        usual_s = max(limits.at_least_s, limits.times * (statistics.median(self._step_s) if self._step_s else 0.0))
        return max(usual_s, min(2 * self.longest_s, _MOST_PAUSES * usual_s))

    def _sign(self, now: float, board: RankBoard) -> None:
        is_start = board.steps <= _FEW_STEPS  # which takes as long as it takes
        if not is_start and not self.is_hung:
            self.longest_s = max(self.longest_s, now - self.last_sign)
        self.is_hung = False
        self.last_sign = now

    def _has_moved_bytes(self, pid: int, now: float) -> bool:
        """Whether it reads or writes in earnest."""
        moved = _bytes_moved(pid)
        rate = (moved - self._bytes) / max(now - self._bytes_at, 1e-3)
        is_known = self._bytes_at > self.last_sign
        self._bytes, self._bytes_at = moved, now
        return is_known and rate > _MOVED_BYTES


def _bytes_moved(pid: int) -> int:
    """What a process has read and written since its start; 0 where that is not told."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.partition(":")[2]) for line in lines if line.startswith(("rchar", "wchar")))
