"""Watches optimizer steps: one row each, and samples of layers and modules as the budget allows.

Everything here runs on the training thread. The always-on part takes a few
microseconds: two hooks of the optimizer, one wrapper around backward, one
around the data loader. Each callback is guarded by its caller.
"""

from __future__ import annotations

import itertools
import math
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from stethos.clock import monotonic_ns
from stethos.native import NATIVE, RecorderFields
from stethos.observe.alarm import is_null
from stethos.observe.budget import NEVER, Budget
from stethos.observe.inspection import Inspector
from stethos.observe.iteration import STEP_ROW, Iteration, Iterations
from stethos.observe.late_row import LateRows, LateStep, Mark, recorded_event
from stethos.observe.layer_name import LayerNames
from stethos.observe.loss_share import LossShares
from stethos.observe.memory_sample import MemorySampler
from stethos.observe.optimizers import Optimizers, Watched
from stethos.observe.sample import LayerSampler
from stethos.observe.session import Session
from stethos.observe.step_sampler import StepSampler
from stethos.observe.tracer import ModuleTracer
from stethos.record.layout import SLOT_PACKERS, HeaderWord
from stethos.record.ring import Ring, Slots
from stethos.schema import NULL_F64, NULL_I64, STEPS

_NO_DISPATCH: Any = torch._C._disabled_torch_dispatch_impl
_STEP_CODE = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__  # runs the hooks around every step
_MOST_SCALED = 64
_PACK_STEP = SLOT_PACKERS[STEPS.number].pack_into
ACCOUNT_NS = 20_000_000  # between two times of accounting, at first
_SHARES = {"norm": 0.3, "layers": 0.35, "modules": 0.18, "memory": 0.09, "histograms": 0.08}
# What all callbacks cost a step, over what the last of them sees on its clock: estimates; `benchmarks.ablation` prints
# both. In C less is left to be seen; what cold caches cost stays.
UNSEEN = 3.5 if NATIVE is None else 5.0
_UNSEEN_LATE = 2.0  # the same where the row waits for a device: the last callback does most of the work


class StepRecorder(RecorderFields):
    """The callbacks and what they share; one per session.

    The callbacks do the least that a row needs. What can wait (accounting,
    deciding on samples, learning what a normal loss is) is done some ten
    times a second by `account`.
    """

    def __init__(self, session: Session, names: LayerNames) -> None:
        self.session = session
        self.names = names
        self.local = Iterations()
        self.is_active = False
        self.next_step_call: Callable[[torch.optim.Optimizer], object] | None = (
            None  # for the next step's beginning, once
        )
        self.on_off: Callable[[], object] = lambda: None
        shares = {"norm": 1.0} if session.settings.preset == "light" else _SHARES
        self.budget = Budget(session.settings.overhead, shares)
        by_kind = self.budget.by_kind
        self.layers = LayerSampler(session, by_kind.get("histograms"))
        self.tracer = ModuleTracer(session, by_kind.get("modules"), MemorySampler(session, by_kind.get("memory")))
        self.peak_bytes = NULL_I64
        self.lead = self.layers.lead
        self.late_rows = LateRows(self.lead)
        self.inspector = Inspector(self)
        self.step_ended: Callable[..., object] = lambda *_: None  # the callback after a step
        self.sample_at = NEVER  # the next step at which a sample is due
        self.put: Callable[..., bool] | None = None
        self.slots: Slots | None = None  # where C writes rows itself
        self.ring: Ring | None = None
        self._count_from_zero()
        self.optimizers = Optimizers(session, names, self.layers.copy_of_start)
        self.sampler = StepSampler(self)
        self.spent_ns = self._accounting_ns = 0  # all that observing has cost so far

    # The rare turns of the hot path ----------------------------------------------------------------

    def failed(self, place: str, error: Exception) -> None:
        """A callback failed; after too many failures all of them only pass on.

        They stay in torch until the end: it is going through its hooks right now.
        """
        self.session.guard.failed(place, error)
        if self.session.guard.is_off(place):
            self.is_active = False
            self.on_off()

    def odd_loss(self, iteration: Iteration, tensors: Any, gradients: Any) -> float:
        """The loss where it is scaled, one of several, on a device, or not a plain tensor."""
        reference, raw = iteration.scaled.pop(id(tensors), (None, tensors))
        if reference is not None and reference() is not tensors:
            raw = tensors
        if isinstance(raw, float) or gradients is not None:
            return raw if isinstance(raw, float) else NULL_F64
        if isinstance(raw, tuple | list):
            return float(sum(self.odd_loss(iteration, loss, None) for loss in raw[:_MOST_SCALED]))
        if not isinstance(raw, torch.Tensor):
            return NULL_F64
        if raw.is_cpu:
            return _number_in(raw)
        place = self.late_rows.copy(raw)
        if place is not None:
            late = iteration.pending
            if late is None or iteration.has_stepped:
                late = iteration.pending = LateStep()
            if iteration.device_mark is not None:
                late.marks.append((Mark.BEFORE, iteration.device_mark))
                iteration.device_mark = None
            late.mark(Mark.BACKWARD)
            late.losses.append(place)
        if self.session.settings.explain_nan and not torch.cuda.is_current_stream_capturing():
            value = _number_in(raw)  # waits for the device: the user allows it
            if not math.isfinite(value) and not is_null(value):
                self.loss_broke(tensors, value)
        return NULL_F64

    def loss_broke(self, tensors: Any, loss: float) -> None:
        """A loss that is NaN or infinite is about to go backward: see where that comes from."""
        self.session.guard.run("inspection", self.inspector.explain, tensors, loss)

    def batch_came(self, iteration: Iteration) -> None:
        """A batch has come, and the last steps were a device's: its forward work begins here at the earliest."""
        iteration.device_mark = recorded_event()

    def backward_ended(self, iteration: Iteration) -> None:
        """A backward of a device's loss has been queued; in a closure the optimizer goes on after it."""
        if iteration.pending is not None:
            iteration.pending.mark(Mark.OPTIMIZER if iteration.depth else Mark.BEFORE)
            loss = None if self.session.settings.explain_nan else iteration.pending.loss_if_there()
            if loss is not None and not math.isfinite(loss):
                self.session.guard.run("inspection", self.inspector.explain_weights)

    def put_later(self, iteration: Iteration) -> None:
        """Write the row of a step that is done once its numbers have come from the device."""
        late, iteration.pending = iteration.pending, None
        if self.put is None or late is None:
            return
        late.mark(Mark.END)
        late.is_traced = iteration.is_traced
        if late.marks:
            iteration.device_mark = late.marks[-1][1]
        self.late_rows.put_later(late, self.put, STEP_ROW(iteration))

    def add_loss(self, iteration: Iteration, loss: float) -> None:
        """A further backward before the step: accumulation adds up, a closure's first loss is the step's."""
        if iteration.depth and not self.is_inside(1):  # a step raised and the training goes on
            iteration.depth = 0
            iteration.has_stepped = True
        if not iteration.depth:
            if not iteration.has_stepped and len(self.optimizers) > 1:
                self._tell_apart(iteration, loss)
            iteration.loss = loss if iteration.has_stepped else iteration.loss + loss
            iteration.has_stepped = False
            return
        if not iteration.closure_backwards:
            iteration.loss = loss
        iteration.closure_backwards += 1

    def _tell_apart(self, iteration: Iteration, loss: float) -> None:
        """There are several optimizers and several losses: see whose the last one was."""
        shares = iteration.shares
        if shares is None or shares.backwards != iteration.backwards_ever:
            shares = iteration.shares = LossShares(iteration.loss)
        shares.claim(self.optimizers.seen_in(iteration))
        shares.add(loss, iteration.backwards_ever + 1)
        iteration.watched = None  # whoever steps next has to `enter`

    def is_inside(self, steps: int) -> bool:
        """Whether this thread is that many optimizer steps deep; a step that raised was begun but never ended."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and steps:
            code = frame.f_code
            if code.co_filename == _STEP_CODE.co_filename and _STEP_CODE.co_name in code.co_name:
                steps -= 1
            frame = frame.f_back
        return not steps

    def has_closure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a step was given a closure, which computes the gradients; `step(None)` was not."""
        return (len(args) > 1 and args[1] is not None) or kwargs.get("closure") is not None

    def samples_in(self, batch: object) -> int:
        """The length of the first tensor found in a batch."""
        for _ in range(3):
            if isinstance(batch, torch.Tensor):
                return batch.shape[0] if batch.dim() else 1
            if isinstance(batch, list | tuple) and batch:
                batch = batch[0]
            elif isinstance(batch, dict) and batch:
                batch = next(iter(batch.values()))
            else:
                return 0
        return 0

    def number_of(self, rate: Any) -> float:
        """A learning rate that is not a plain float; NULL where reading it would wait for a device."""
        if isinstance(rate, torch.Tensor):
            return float(rate) if rate.is_cpu and rate.numel() == 1 else NULL_F64
        return NULL_F64 if rate is None else float(rate)

    def reopen(self) -> None:
        """The session got a ring, or a forked child lost its parent's: write to that one from now on."""
        self.ring = self.session.open()
        self.put = self.slots = None
        if self.ring is not None:
            self.spent_ns = 0
            self.put, self.slots = self.ring.writer(_PACK_STEP), self.ring.slots

    # Gradient scaler -------------------------------------------------------------------------------

    def loss_scaled(self, raw: Any, scaled: Any) -> None:
        """AMP multiplied a loss; remember the true one for the backward of the product."""
        if isinstance(raw, tuple | list):
            for pair in zip(raw, scaled, strict=False):
                self.loss_scaled(*pair)
        elif isinstance(raw, torch.Tensor) and raw.numel() == 1:
            losses = self.local.iteration.scaled
            if len(losses) >= _MOST_SCALED:
                losses.clear()
            losses[id(scaled)] = weakref.ref(scaled), _number_in(raw) if raw.is_cpu else raw.detach()

    def scaler_stepped(self, completed_before: int) -> None:
        """The scaler's step returned; without an optimizer step it was skipped for infinite gradients."""
        iteration = self.local.iteration
        iteration.scaled.clear()
        if iteration.completed == completed_before:
            iteration.skipped += 1
            iteration.has_stepped = True

    def sample(self, watched: Watched, iteration: Iteration) -> None:
        """Before a step at which a sample is due or something looks wrong."""
        self.sampler.sample(watched, iteration)

    # Accounting ------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Recording ends: write what was held back, and the final counts."""
        self.tracer.finish()
        self.layers.finish()
        self.late_rows.finish()
        if self.ring is not None:
            self.ring.set_word(HeaderWord.STEPS, self.session.steps)

    def after_fork(self) -> None:
        """In a forked child: count from 0; a trace that its parent had begun is not the child's to finish."""
        self._count_from_zero()
        self.local.after_fork()
        self.tracer.stop()
        self.optimizers.forget_ids()

    def _count_from_zero(self) -> None:
        """The next step's number: `number` gives it in Python, where threads may race for it, `next_step` is C's."""
        self.number = itertools.count().__next__
        self.next_step = 0

    def beat(self) -> None:
        """A batch was handed out while no step is made: show that the process is at work."""
        if self.ring is not None:
            self.ring.set_word(HeaderWord.BATCHES, self.ring.word(HeaderWord.BATCHES) + 1)

    def take_number(self) -> int:
        """The number of a step that no callback has seen begin."""
        if NATIVE is None:
            return self.number()
        self.next_step += 1
        return self.next_step - 1

    def account(self, iteration: Iteration, watched: Watched, step: int, now: int) -> None:
        """Now and then: account for what observing cost and decide what to sample next."""
        before_ns = self.layers.spent_ns + self.tracer.spent_ns
        elapsed_ns = now - iteration.accounted_ns if iteration.accounted_ns else 0
        iteration.accounted_ns = now
        steps = iteration.completed + 1 - iteration.counted
        iteration.counted += steps
        iteration.pace.end_stretch(elapsed_ns, steps)
        optimizer_ns = now - iteration.optimizer_start_ns
        self.session.guard.run("modules", self.tracer.step_ended, watched, iteration, optimizer_ns, step)
        iteration.is_traced = self.tracer.is_tracing()
        self.session.guard.run("layers", self.layers.flush)
        self.session.guard.run("inspection", self.inspector.account)
        is_late = iteration.device_mark is not None
        traced_ns = self.tracer.spent_ns
        if is_late:
            if traced_ns:
                self.late_rows.trace_price.charge(traced_ns)
            traced_ns = self.late_rows.trace_price.take_lost_ns()
        sampled_ns = self.layers.spent_ns + traced_ns
        clocked_ns = self.layers.spent_ns + self.tracer.spent_ns - before_ns
        self.layers.spent_ns = self.tracer.spent_ns = 0
        unseen = _UNSEEN_LATE if is_late else UNSEEN
        always_on_ns = unseen * max(iteration.spent_ns, 0) + self._accounting_ns
        always_on_ns = self.lead.lost_ns(always_on_ns / max(steps, 1)) * steps
        self.spent_ns += int(always_on_ns + sampled_ns)
        self.budget.earn(elapsed_ns, always_on_ns, steps)
        watched.alarm.learn(iteration.loss)
        self.sampler.plan(step)
        if self.ring is not None:
            self.ring.set_word(HeaderWord.SPENT_NS, self.spent_ns)
            self.ring.set_word(HeaderWord.STEPS, self.session.steps)
            self.ring.set_word(HeaderWord.LAST_STEP_NS, now + self.session.offset_ns)
        took_ns = monotonic_ns() - now  # with the way here, which is cold as well
        self._accounting_ns = max(took_ns - clocked_ns, 0)  # nothing of it is unseen; counted next time
        iteration.account_at_ns = (
            0 if iteration.is_traced else now + self.budget.pause_ns(self._accounting_ns, ACCOUNT_NS)
        )
        iteration.spent_ns = -took_ns  # the callback is about to add it

    # Optimizers --------------------------------------------------------------------------------------

    def enter(self, iteration: Iteration, optimizer: torch.optim.Optimizer) -> Watched:
        """Another optimizer than last time, a new one, or one of several whose losses have to be told apart."""
        watched = self.optimizers.find(optimizer)
        if watched is None:
            watched = self.optimizers.meet(optimizer)
            if watched.is_new_structure:
                self.sample_at = 0
                self.session.guard.run("inspection", self.inspector.optimizer_came)
            if iteration.has_stepped and not iteration.in_backward:  # the last loss has been another optimizer's
                watched.backwards_seen = iteration.backwards_ever
        iteration.owner = id(optimizer)
        iteration.watched = watched
        watched.iteration_id = id(iteration)
        shares = iteration.shares
        if shares is not None and shares.backwards == iteration.backwards_ever:
            shares.claim(self.optimizers.seen_in(iteration))
            iteration.loss = shares.of(watched)
        return watched


def _number_in(loss: torch.Tensor) -> float:
    """A CPU loss as a number; NULL for a wrapper around other tensors, as reading one may communicate."""
    if type(loss).__torch_dispatch__ is not _NO_DISPATCH:
        return NULL_F64
    with _disable_current_modes(), torch._C.DisableTorchFunctionSubclass():
        return float(loss.item())
