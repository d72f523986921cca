"""What one thread has done since its last optimizer step."""

from __future__ import annotations

import threading
from typing import Any

from stethos.schema import NULL_F64


class Iteration:
    """Times in ns; all zero-based sums are for the iteration in progress."""

    __slots__ = (
        "backward_ns", "backward_start_ns", "backwards", "batch_data_ns", "batch_samples", "closure_backwards",
        "completed", "data_ns", "depth", "entry", "forward_ns", "has_batch", "has_stepped", "in_backward",
        "last_end_ns", "loss", "mark_ns", "norm", "optimizer_start_ns", "owner", "raw_loss", "samples",
        "scaled_id", "skipped", "spent_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.depth = 0  # optimizers inside each other (Lookahead, ZeRO)
        self.owner = 0
        self.entry: Any = None
        self.in_backward = False
        self.has_stepped = True
        self.last_end_ns = 0
        self.mark_ns = 0  # when forward work may have begun
        self.optimizer_start_ns = 0
        self.backward_start_ns = 0
        self.raw_loss: float = NULL_F64
        self.scaled_id = 0
        self.completed = 0
        self.skipped = 0
        self.norm = NULL_F64
        self.spent_ns = 0
        self.batch_data_ns = self.batch_samples = 0
        self.has_batch = False
        self.begin()

    def begin(self) -> None:
        """Forget the finished iteration; the loss stays until the next backward (two optimizers may share one)."""
        self.backwards = self.closure_backwards = 0
        self.data_ns = self.forward_ns = self.backward_ns = 0
        self.samples = 0
        self.has_batch = False
        if not hasattr(self, "loss"):
            self.loss = NULL_F64


class Iterations(threading.local):
    """The iteration of the calling thread."""

    def __init__(self) -> None:
        self.now = Iteration()
