"""Watches optimizer steps: one row each, and samples of layers and modules as the budget allows.

Everything here runs on the training thread. The always-on part takes a few
microseconds: two hooks of the optimizer, one wrapper around backward, one
around the data loader. Each callback is guarded by its caller.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from operator import is_not
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from stethos.clock import monotonic_ns
from stethos.native import NATIVE, WatchedFields, WatchFields
from stethos.observe.alarm import Alarm
from stethos.observe.budget import Budget
from stethos.observe.context import Turn
from stethos.observe.iteration import Iteration, Iterations
from stethos.observe.late_row import LateRows, LateStep, Mark, recorded_event
from stethos.observe.layer_name import LayerNames, Named, parameters_of
from stethos.observe.loss_share import LossShares, Probes
from stethos.observe.memory_sample import MemorySampler
from stethos.observe.memory_trace import is_only_mode
from stethos.observe.sample import LateSample, LayerSampler, cuda_peak_of, tensor_bytes_of
from stethos.observe.session import Session
from stethos.observe.statistic import norm_of
from stethos.observe.tracer import ModuleTracer
from stethos.record.layout import Word
from stethos.record.ring import Ring
from stethos.schema import NULL_F64, NULL_I32, NULL_I64, STEPS

_NO_DISPATCH: Any = torch._C._disabled_torch_dispatch_impl
_STEP_CODE = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__  # runs the hooks around every step
_MOST_SCALED = 64
KEEP_HOUSE_NS = 20_000_000  # between two times of housekeeping, at first
_SHARES = {"norm": 0.3, "layers": 0.4, "modules": 0.2, "memory": 0.1}
_UNNAMED, _SILENT = Named("", (), None), Alarm()
# What all callbacks cost a step, over what the last of them sees on its clock: estimates; `benchmarks.ablation` prints
# both. In C less is left to be seen; what cold caches cost stays.
UNSEEN = 3.5 if NATIVE is None else 5.0


class Watched(WatchedFields):
    """One optimizer as we know it."""

    def __init__(self, number: int, optimizer: weakref.ref[torch.optim.Optimizer]) -> None:
        self.number = number
        self.optimizer = optimizer
        self.params: list[torch.Tensor] = []
        self.named = _UNNAMED
        self.alarm = _SILENT
        self.is_new_structure = self.was_sampled = False
        self.start: list[torch.Tensor] | None = None
        # Words of its rows, each of two 32-bit numbers: the first of its name is the lower half.
        self.table_client = self.round_optimizer = 0
        self.local_step_model = NULL_I32 << 32
        self.turn: Turn | None = None
        self.backwards = -1  # its thread's count at its last step
        self.allocated_bytes = NULL_I64
        self.layer_ids: list[int] = []
        self.iteration_id = 0  # of the thread that it stepped in last
        self.probes: Probes | None = None  # where losses have to be told apart

    def take_turn(self, turn: Turn) -> None:
        """From now on its steps are of this client and round."""
        self.turn, (client, round_, _) = turn, turn
        self.table_client = (client << 32) + STEPS.number
        self.round_optimizer = (self.number << 32) + (round_ & 0xFFFF_FFFF)


class StepWatch(WatchFields):
    """The callbacks and what they share; one per session.

    The callbacks do the least that a row needs. What can wait (accounting,
    deciding on samples, learning what a normal loss is) is done some ten
    times a second by `keep_house`.
    """

    def __init__(self, session: Session, names: LayerNames) -> None:
        self.session = session
        self.names = names
        self.local = Iterations()
        self.is_active = False
        self.errand: Callable[[torch.optim.Optimizer], object] | None = None  # for the next step's beginning, once
        self.on_off: Callable[[], object] = lambda: None
        shares = {"norm": 1.0} if session.settings.preset == "light" else _SHARES
        self.budget = Budget(session.settings.overhead, shares)
        self.layers = LayerSampler(session)
        purses = self.budget.purses
        self.tracer = ModuleTracer(session, purses.get("modules"), MemorySampler(session, purses.get("memory")))
        self.peak_bytes = NULL_I64
        self.late_rows = LateRows()
        self.is_due = False
        self.put: Callable[..., bool] | None = None
        self.ring: Ring | None = None
        self._count_from_zero()
        self._watched: dict[int, Watched] = {}
        self._alarms: dict[tuple[str, ...], Alarm] = {}
        self._last_ids: tuple[Named, int, list[int]] = _UNNAMED, NULL_I32, []
        self._count = 0
        self._spent_ns = self._house_ns = 0

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
        return NULL_F64

    def batch_came(self, iteration: Iteration) -> None:
        """A batch has come, and the last steps were a device's: its forward work begins here at the earliest."""
        iteration.device_mark = recorded_event()

    def backward_ended(self, iteration: Iteration) -> None:
        """A backward of a device's loss has been queued; in a closure the optimizer goes on after it."""
        if iteration.pending is not None:
            iteration.pending.mark(Mark.OPTIMIZER if iteration.depth else Mark.BEFORE)

    def put_later(self, iteration: Iteration, put: Callable[..., bool] | None) -> Callable[..., Any] | None:
        """A stand-in for the ring's writer that waits for the numbers of this step."""
        late, later = iteration.pending, self.late_rows
        iteration.pending = None
        if put is None or late is None:
            return put
        late.mark(Mark.END)
        if late.marks:
            iteration.device_mark = late.marks[-1][1]
        return lambda *values: later.put_later(late, put, values)

    def add_loss(self, iteration: Iteration, loss: float) -> None:
        """A further backward before the step: accumulation adds up, a closure's first loss is the step's."""
        if iteration.depth and not self.is_inside(1):  # a step raised and the training goes on
            iteration.depth = 0
            iteration.has_stepped = True
        if not iteration.depth:
            if not iteration.has_stepped and len(self._watched) > 1:
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
        if shares is None or shares.backwards != iteration.backwards:
            shares = iteration.shares = LossShares(iteration.loss)
        shares.claim(self._seen_in(iteration))
        shares.add(loss, iteration.backwards + 1)
        iteration.watched = None  # whoever steps next has to `enter`

    def _seen_in(self, iteration: Iteration) -> list[Watched]:
        return [watched for watched in list(self._watched.values()) if watched.iteration_id == id(iteration)]

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

    def reopen(self) -> Callable[..., bool] | None:
        """The ring's writer, after the session got a ring or a forked child lost its parent's."""
        self.ring = self.session.open()
        self.put = None
        if self.ring is not None:
            self._spent_ns = 0
            self.put = self.ring.step_writer()
        return self.put

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

    # Housekeeping ------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Recording ends: write what was held back, and the final counts."""
        self.tracer.finish()
        self.layers.finish()
        self.late_rows.finish()
        if self.ring is not None:
            self.ring.set_word(Word.STEPS, self.session.steps)

    def after_fork(self) -> None:
        """In a forked child: count from 0; a trace that its parent had begun is not the child's to finish."""
        self._count_from_zero()
        self.local.after_fork()
        self.tracer.stop()
        self._last_ids = _UNNAMED, NULL_I32, []

    def _count_from_zero(self) -> None:
        """The next step's number: `number` gives it in Python, where threads may race for it, `next_step` is C's."""
        self.number = itertools.count().__next__
        self.next_step = 0

    def beat(self) -> None:
        """A batch was handed out while no step is made: show that the process is at work."""
        if self.ring is not None:
            self.ring.set_word(Word.BATCHES, self.ring.word(Word.BATCHES) + 1)

    def keep_house(self, iteration: Iteration, watched: Watched, step: int, now: int) -> None:
        """Now and then: account for what observing cost and decide what to sample next."""
        before_ns = self.layers.spent_ns + self.tracer.spent_ns
        elapsed_ns = now - iteration.kept_ns if iteration.kept_ns else 0
        iteration.kept_ns = now
        steps = iteration.completed + 1 - iteration.counted
        iteration.counted += steps
        iteration.pace.end_stretch(elapsed_ns, steps)
        optimizer_ns = now - iteration.optimizer_start_ns
        self.session.guard.run("modules", self.tracer.step_ended, watched, iteration, optimizer_ns, step)
        iteration.is_traced = self.tracer.is_tracing()
        self.session.guard.run("layers", self.layers.flush)
        sampled_ns = self.layers.spent_ns + self.tracer.spent_ns
        self.layers.spent_ns = self.tracer.spent_ns = 0
        always_on_ns = UNSEEN * max(iteration.spent_ns, 0) + self._house_ns
        self._spent_ns += int(always_on_ns + sampled_ns)
        self.budget.earn(elapsed_ns, always_on_ns)
        watched.alarm.learn(iteration.loss)
        purses = self.budget.purses
        self.is_due = purses["norm"].can_afford() or ("layers" in purses and purses["layers"].can_afford())
        if self.ring is not None:
            self.ring.set_word(Word.SPENT_NS, self._spent_ns)
            self.ring.set_word(Word.STEPS, self.session.steps)
            self.ring.set_word(Word.LAST_STEP_NS, now + self.session.offset_ns)
        took_ns = monotonic_ns() - now  # with the way here, which is cold as well
        self._house_ns = max(took_ns - (sampled_ns - before_ns), 0)  # nothing of it is unseen; counted next time
        iteration.house_ns = 0 if iteration.is_traced else now + self.budget.pause_ns(self._house_ns, KEEP_HOUSE_NS)
        iteration.spent_ns = -took_ns  # the callback is about to add it

    # Samples -----------------------------------------------------------------------------------------

    def sample(self, watched: Watched, iteration: Iteration) -> None:
        """Take the gradient norm, or all layer statistics, if due or if something looks wrong."""
        self.is_due = False
        if not torch._C._len_torch_dispatch_stack():
            self._sample(watched, iteration)
        elif is_only_mode():  # our own trace of memory: it need not see our reading
            with _disable_current_modes():
                self._sample(watched, iteration)
        # the owner of any other mode would take our reading for the training's own work

    def _sample(self, watched: Watched, iteration: Iteration) -> None:
        alarm, guard = watched.alarm, self.session.guard
        is_urgent = not alarm.low <= iteration.loss <= alarm.high and alarm.rings_for_loss(iteration.loss)
        layers = self.budget.purses.get("layers")
        is_new, watched.is_new_structure = watched.is_new_structure, False
        if layers is not None and (is_new or is_urgent or layers.can_afford()):
            guard.run("layers", self._sample_layers, watched, iteration)
        elif is_new or is_urgent or self.budget.purses["norm"].can_afford():
            guard.run("norm", self._sample_norm, watched, iteration)
            if alarm.rings_for_norm(iteration.norm) and layers is not None:
                guard.run("layers", self._sample_layers, watched, iteration)

    def _sample_norm(self, watched: Watched, iteration: Iteration) -> None:
        start = monotonic_ns()
        gradients = [param.grad for param in self._params_now(watched)]
        if any(gradient is not None and gradient.is_cuda for gradient in gradients):
            sample = self.layers.start_norm(gradients, self.budget.purses["norm"])
            if sample is None:
                return
            self._hold_for(iteration, sample)
        else:
            iteration.norm = norm_of(gradients)
        self._pay("norm", iteration, monotonic_ns() - start, is_cold=iteration.pending is not None)

    def _sample_layers(self, watched: Watched, iteration: Iteration) -> None:
        start = monotonic_ns()
        self._params_now(watched)
        sample = self.layers.take(watched, iteration.step, self.budget.purses["layers"])
        if sample is None:  # the device is not to be asked now; a first sample is not given up for that
            watched.is_new_structure = self.is_due = watched.is_new_structure or not watched.was_sampled
            return
        watched.was_sampled = True
        is_late = not sample.is_there()
        if not is_late:
            iteration.norm = sample.norm()
            watched.alarm.learn_norm(iteration.norm)
        else:
            self._hold_for(iteration, sample)
        optimizer = watched.optimizer()
        if optimizer is not None:
            watched.allocated_bytes = tensor_bytes_of(optimizer, watched.params)
            peak = max(watched.allocated_bytes, cuda_peak_of(watched.params))
            self.peak_bytes = max(self.peak_bytes, peak, self.tracer.peak_bytes)
        self.session.look_after_drainer()
        self._pay("layers", iteration, monotonic_ns() - start, is_cold=is_late)

    def _hold_for(self, iteration: Iteration, sample: LateSample) -> None:
        """The step's row waits for a sample that a device is still busy with."""
        if iteration.pending is None:
            iteration.pending = LateStep()
        iteration.pending.sample = sample

    def _pay(self, kind: str, iteration: Iteration, clocked_ns: int, *, is_cold: bool) -> None:
        purse = self.budget.purses[kind]
        self.layers.spent_ns += purse.pay(clocked_ns, is_cold=is_cold)
        iteration.pace.note(purse, clocked_ns)

    # Optimizers --------------------------------------------------------------------------------------

    def enter(self, iteration: Iteration, optimizer: torch.optim.Optimizer) -> Watched:
        """Another optimizer than last time, a new one, or one of several whose losses have to be told apart."""
        identity = id(optimizer)
        watched = self._watched.get(identity)
        if watched is None or watched.optimizer() is not optimizer:
            watched = self._meet(optimizer)
            if iteration.has_stepped and not iteration.in_backward:  # the last loss has been another optimizer's
                watched.backwards = iteration.backwards
        iteration.owner = identity
        iteration.watched = watched
        watched.iteration_id = id(iteration)
        shares = iteration.shares
        if shares is not None and shares.backwards == iteration.backwards:
            shares.claim(self._seen_in(iteration))
            iteration.loss = shares.of(watched)
        return watched

    def seen(self) -> list[Watched]:
        """Every optimizer that is still there, in order of first use; for the agent."""
        return sorted(self._watched.values(), key=lambda watched: watched.number)

    def _meet(self, optimizer: torch.optim.Optimizer) -> Watched:
        """Get to know an optimizer at its first step."""
        identity = id(optimizer)
        self._count += 1
        watched = Watched(self._count, weakref.ref(optimizer, lambda _: self._forget(identity)))
        self._learn_params(watched, optimizer)
        alarm = self._alarms.get(watched.named.layers)
        watched.is_new_structure = alarm is None
        watched.alarm = alarm or self._alarms.setdefault(watched.named.layers, Alarm())
        self._watched[identity] = watched
        self.is_due = self.is_due or watched.is_new_structure
        return watched

    def _forget(self, identity: int) -> None:
        """An optimizer is gone: a thread may still hold what we knew of it, but its tensors are let go."""
        watched = self._watched.pop(identity, None)
        if watched is not None:
            watched.params, watched.start, watched.probes = [], None, None

    def _learn_params(self, watched: Watched, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's parameters, their names and start values; none of this is worth losing its steps."""
        guard, name_id = self.session.guard, self.session.name_id
        params = parameters_of(optimizer)
        starts = {id(param): start for param, start in zip(watched.params, watched.start or (), strict=False)}
        fresh = [param for param in params if id(param) not in starts] if starts else params
        copies = guard.run("drift", self.layers.copy_of_start, fresh)
        if starts and copies is not None:
            starts |= zip(map(id, fresh), copies, strict=True)
            copies = [starts[id(param)] for param in params]
        watched.start = copies
        watched.params, watched.probes = params, None
        named = watched.named = guard.run("names", self.names.of, optimizer) or _numbered(len(params))
        if named is not self._last_ids[0]:  # else a model that is trained turn by turn has got its next optimizer
            model = name_id(named.model) if named.model else NULL_I32
            ids = [name_id(name) for name in named.layers]
            self._last_ids = named if NULL_I32 not in ids else _UNNAMED, model, ids
        _, model, watched.layer_ids = self._last_ids
        watched.local_step_model = (model << 32) + (watched.local_step_model & 0xFFFF_FFFF)
        allocated = guard.run("memory", tensor_bytes_of, optimizer, params)
        watched.allocated_bytes = NULL_I64 if allocated is None else allocated

    def _params_now(self, watched: Watched) -> list[torch.Tensor]:
        """The optimizer's parameters, learned anew if it was given others since."""
        optimizer = watched.optimizer()
        if optimizer is not None:
            params = parameters_of(optimizer)
            if len(params) != len(watched.params) or any(map(is_not, params, watched.params)):
                self._learn_params(watched, optimizer)
        return watched.params


def _numbered(count: int) -> Named:
    """Names for parameters whose names cannot be found."""
    return Named("", tuple(f"param_{index}" for index in range(count)), None)


def _number_in(loss: torch.Tensor) -> float:
    """A CPU loss as a number; NULL for a wrapper around other tensors, as reading one may communicate."""
    if type(loss).__torch_dispatch__ is not _NO_DISPATCH:
        return NULL_F64
    with _disable_current_modes(), torch._C.DisableTorchFunctionSubclass():
        return float(loss.item())
