"""What one thread has done since its last optimizer step."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import TYPE_CHECKING

from stethos.schema import NULL_F64

if TYPE_CHECKING:
    import torch

    from stethos.observe.stepwatch import Watched


_FIRST_BACKWARDS = itertools.count(1)
_NEVER_NS = 1 << 62  # in the future, so that a duration since then is negative and becomes NULL


class Iteration:
    """Times in ns, sums of the iteration in progress. The loss stays until the next backward: two optimizers
    may step on one."""

    __slots__ = (
        "backward_ns", "backwards", "backwards_before", "batch_data_ns", "batch_samples", "closure_backwards",
        "completed", "counted", "data_ns", "depth", "forward_ns", "has_stepped", "in_backward", "kept_ns",
        "last_end_ns", "loss", "mark_ns", "norm", "optimizer_start_ns", "owner", "pending", "samples",
        "scaled", "skipped", "spent_ns", "step", "watched",
    )  # fmt: skip

    def __init__(self) -> None:
        self.depth = 0  # optimizers inside each other (Lookahead, ZeRO)
        self.owner = 0
        self.watched: Watched | None = None
        self.in_backward = False
        self.has_stepped = True
        self.loss = self.norm = NULL_F64
        # True losses by the id of what a gradient scaler made of them, with a reference to it: ids are used again.
        self.scaled: dict[int, tuple[weakref.ref[torch.Tensor], float | torch.Tensor]] = {}
        self.pending: list[int] | None = None  # places of losses that are still on a device
        self.mark_ns = 0  # when forward work may have begun
        self.last_end_ns = _NEVER_NS
        self.optimizer_start_ns = self.kept_ns = self.spent_ns = 0
        self.data_ns = self.forward_ns = self.backward_ns = 0
        # Never reset, and different in every thread: by it an optimizer knows whether one came since its last step.
        self.backwards = self.backwards_before = next(_FIRST_BACKWARDS) << 40
        self.closure_backwards = self.completed = self.counted = self.skipped = 0
        self.step = -1  # the number of the step in progress
        self.batch_data_ns = self.batch_samples = self.samples = 0


class Iterations(threading.local):
    """Each thread's own iteration."""

    def __init__(self) -> None:
        self.iteration = Iteration()
