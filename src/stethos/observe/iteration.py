"""What one thread has done since its last optimizer step."""

from __future__ import annotations

import itertools
import threading
import weakref
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from stethos.native import MOST_AHEAD, IterationFields, IterationsFields, own_slots
from stethos.observe.budget import Pace
from stethos.schema import NULL_F64, STEPS

if TYPE_CHECKING:
    import torch

    from stethos.observe.late_row import LateStep
    from stethos.observe.loss_share import LossShares
    from stethos.observe.optimizers import Watched


STEP_ROW = attrgetter(*STEPS.slot_fields)  # the values of an iteration's row, as `SLOT_PACKERS` takes them
_FIRST_BACKWARDS = itertools.count(1)
_NEVER_NS = 1 << 62  # in the future, so that a duration since then is negative and becomes NULL


class Iteration(IterationFields):
    """The row of `steps` in progress, field by field as in its slot, and what it takes to fill it.

    Times are in ns, sums of the iteration in progress. The loss stays until the next backward: two optimizers may step
    on one.
    """

    __slots__ = ("ahead", "shares", *own_slots("Iteration"))

    if TYPE_CHECKING:  # the fields of the row come from `schema.py`; one that does not exist is an error all the same

        def __setattr__(self, name: str, value: Any, /) -> None: ...

    def __init__(self) -> None:
        for name, code in STEPS.slot_fields.items():
            setattr(self, name, NULL_F64 if code == "d" else 0)
        self.table = STEPS.number
        self.depth = 0  # optimizers inside each other (Lookahead, ZeRO)
        self.owner = 0
        self.watched: Watched | None = None
        self.in_backward = self.is_traced = False
        self.has_stepped = True
        self.loss = self.grad_norm = NULL_F64
        # True losses by the id of what a gradient scaler made of them, with a reference to it: ids are used again.
        self.scaled: dict[int, tuple[weakref.ref[torch.Tensor], float | torch.Tensor]] = {}
        self.pending: LateStep | None = None  # numbers of the step in progress that are still on a device
        self.device_mark: Any = None  # an event where the device may begin with forward work
        self.shares: LossShares | None = None  # of the losses, where there were several and several optimizers
        self.mark_ns = 0  # when forward work may have begun
        self.last_end_ns = _NEVER_NS
        self.optimizer_start_ns = self.accounted_ns = self.account_at_ns = self.spent_ns = 0
        self.data_ns = self.forward_ns = self.backward_ns = 0.0
        # Never reset, and different in every thread: by it an optimizer knows whether one came since its last step.
        self.backwards_ever = self.backwards_before = next(_FIRST_BACKWARDS) << 40
        self.closure_backwards = self.completed = self.counted = self.skipped = 0
        self.pace = Pace()
        self.step = -1  # the number of the step in progress
        self.batch_data_ns = self.batch_source = self.samples = 0
        # Samples of batches that have come and that no backward has followed yet; the callbacks in C have their own.
        self.ahead: list[int] = []

    def batch_came(self, source: int, samples: int, *, is_first: bool) -> None:
        """Keep the size of a batch for the backward on it; those of another pass than the last one's are let go.

        Batches may come ahead of their use: Accelerate asks for one more, Transformers for those of a whole step.
        """
        if is_first or self.batch_source != source:
            self.batch_source = source
            self.ahead.clear()
        self.ahead.append(samples)
        del self.ahead[:-MOST_AHEAD]


class Iterations(IterationsFields):
    """Each thread's own iteration.

    The hot path asks `home_thread` itself: inside a training step `threading.local` takes longer to find it.
    """

    def __init__(self) -> None:
        self.home = Iteration()  # the main thread's
        self.home_thread = threading.main_thread().ident or 0
        self._others = _Others()

    @property
    def iteration(self) -> Iteration:
        return self.home if threading.get_ident() == self.home_thread else self._others.iteration

    def after_fork(self) -> None:
        """In a forked child: if another thread forked, the main thread is gone and its number may come again."""
        if threading.get_ident() != self.home_thread:
            self.home_thread = 0


class _Others(threading.local):
    def __init__(self) -> None:
        self.iteration = Iteration()
