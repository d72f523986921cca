"""What one thread has done since its last optimizer step."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from stethos.schema import NULL_F64

if TYPE_CHECKING:
    import torch

    from stethos.observe.stepwatch import Watched


class Iteration:
    """Times in ns, sums of the iteration in progress. The loss stays until the next backward: two optimizers
    may step on one."""

    __slots__ = (
        "backward_ns", "backward_start_ns", "backwards", "batch_data_ns", "batch_samples", "closure_backwards",
        "completed", "data_ns", "depth", "forward_ns", "has_stepped", "in_backward", "kept_ns",
        "last_end_ns", "loss", "mark_ns", "norm", "optimizer_start_ns", "owner", "pending", "raw_loss", "samples",
        "scaled_id", "skipped", "spent_ns", "watched",
    )  # fmt: skip

    def __init__(self) -> None:
        self.depth = 0  # optimizers inside each other (Lookahead, ZeRO)
        self.owner = 0
        self.watched: Watched | None = None
        self.in_backward = False
        self.has_stepped = True
        self.loss = self.norm = NULL_F64
        self.raw_loss: float | torch.Tensor = NULL_F64
        self.scaled_id = 0
        self.pending: list[int] | None = None  # places of losses that are still on a device
        self.mark_ns = 0  # when forward work may have begun
        self.last_end_ns = self.optimizer_start_ns = self.backward_start_ns = self.kept_ns = self.spent_ns = 0
        self.data_ns = self.forward_ns = self.backward_ns = 0
        self.backwards = self.closure_backwards = self.completed = self.skipped = 0
        self.batch_data_ns = self.batch_samples = self.samples = 0


class Iterations(threading.local):
    """Each thread's own iteration."""

    def __init__(self) -> None:
        self.iteration = Iteration()
