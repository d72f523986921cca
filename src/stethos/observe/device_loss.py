"""Losses on their way from a device to the host: copied without waiting, read some steps later.

`.item()` on a CUDA tensor waits for everything queued before it. Here the
copy goes into pinned memory behind the training's own work, and the step's
row is held back until the copy has arrived; what is still on its way when
the process is killed is lost with it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from stethos.schema import NULL_F64

_SLOTS = 256
_LAST_WAIT_S = 0.5
LOSS_AT = 5  # position of the loss among the values of a row of `steps`


class DeviceLosses:
    """Holds rows of `steps` until their losses have reached the host."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None
        self._events: list[torch.cuda.Event] = []
        self._next = 0
        self._waiting: deque[tuple[list[int], Callable[..., bool], tuple[Any, ...]]] = deque()

    def copy(self, loss: torch.Tensor) -> int | None:
        """Start copying a loss; return its place, or None where that is not possible."""
        if not loss.is_cuda or loss.numel() != 1 or torch.cuda.is_current_stream_capturing():
            return None
        if self._buffer is None:
            self._buffer = torch.empty(_SLOTS, dtype=torch.float64, device="cpu", pin_memory=True)
            self._events = [torch.cuda.Event() for _ in range(_SLOTS)]  # type: ignore[no-untyped-call]
        place = self._next % _SLOTS
        self._next += 1
        self._buffer[place : place + 1].copy_(loss.detach().reshape(1), non_blocking=True)
        self._events[place].record()
        return place

    def put_later(self, places: list[int], put: Callable[..., bool], values: tuple[Any, ...]) -> None:
        """Hold a row back; earlier ones whose losses have arrived are written now."""
        self._waiting.append((places, put, values))
        self.flush()

    def flush(self) -> None:
        while self._waiting and self._has_arrived(self._waiting[0][0]):
            self._write(is_known=True)
        while len(self._waiting) > _SLOTS // 2:
            self._write(is_known=False)

    def finish(self) -> None:
        """Write everything, waiting a moment for what is still on its way."""
        deadline = time.monotonic() + _LAST_WAIT_S
        while self._waiting and time.monotonic() < deadline:
            self.flush()
            time.sleep(0.001)
        while self._waiting:
            self._write(is_known=False)

    def _has_arrived(self, places: list[int]) -> bool:
        return all(self._events[place].query() for place in places)  # type: ignore[no-untyped-call]

    def _write(self, *, is_known: bool) -> None:
        places, put, values = self._waiting.popleft()
        loss = NULL_F64
        if is_known and self._buffer is not None:
            loss = sum(float(self._buffer[place]) for place in places)
        put(*values[:LOSS_AT], loss, *values[LOSS_AT + 1 :])
