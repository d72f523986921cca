"""Watches optimizer steps: one row each, and samples of layers and modules as the budget allows.

Everything here runs on the training thread. The always-on part takes a few
microseconds: two hooks of the optimizer, one wrapper around backward, one
around the data loader. Each callback is guarded by its caller.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from stethos.clock import monotonic_ns
from stethos.observe.alarm import Alarm
from stethos.observe.budget import Budget
from stethos.observe.device_loss import DeviceLosses
from stethos.observe.iteration import Iteration, Iterations
from stethos.observe.layer_name import LayerNames, Named
from stethos.observe.sample import LayerSampler, tensor_bytes_of
from stethos.observe.session import Session
from stethos.observe.statistic import norm_of
from stethos.observe.tracer import ModuleTracer
from stethos.record.layout import SLOT_PACKERS, Word
from stethos.record.ring import Ring
from stethos.schema import NULL_F64, NULL_I32, NULL_I64, STEPS

_PACK_STEP = SLOT_PACKERS[STEPS.number].pack_into
KEEP_HOUSE_NS = 5_000_000
_UNSEEN_NS = 5_000  # a step's share that no callback sees: reaching them, backward and data loader (measured)


@dataclass(slots=True, eq=False)
class Watched:
    """One optimizer as we know it."""

    number: int
    optimizer: weakref.ref[torch.optim.Optimizer]
    params: list[torch.Tensor]
    named: Named
    model_id: int
    alarm: Alarm
    is_new_structure: bool
    start: list[torch.Tensor] | None = None
    local_step: int = 0
    allocated_bytes: int = NULL_I64
    layer_ids: list[int] = field(default_factory=list)


class StepWatch:
    """The callbacks and what they share; one per session.

    The callbacks do the least that a row needs. What can wait (accounting,
    deciding on samples, learning what a normal loss is) is done every few
    milliseconds by `_keep_house`.
    """

    def __init__(self, session: Session, names: LayerNames) -> None:
        self.session = session
        self.names = names
        self.local = Iterations()
        self.is_active = False
        self.on_off: Callable[[], object] = lambda: None
        shares = {"norm": 1.0} if session.settings.preset == "light" else {"norm": 0.3, "layers": 0.45, "modules": 0.25}
        self.budget = Budget(session.settings.overhead, shares)
        self.layers = LayerSampler(session)
        self.tracer = ModuleTracer(session, self.budget.purses.get("modules"))
        self.peak_bytes = NULL_I64
        self.device_losses = DeviceLosses()
        self.is_due = False
        self.put: Callable[..., bool] | None = None
        self.ring: Ring | None = None
        self.number = itertools.count().__next__
        self._watched: dict[int, Watched] = {}
        self._alarms: dict[tuple[str, ...], Alarm] = {}
        self._count = 0
        self._spent_ns = self._counted = 0

    # The rare turns of the hot path ----------------------------------------------------------------

    def failed(self, place: str, error: Exception) -> None:
        """A callback failed; after too many failures everything is taken out of torch."""
        self.session.guard.failed(place, error)
        if self.session.guard.is_off(place):
            self.is_active = False
            self.on_off()

    def odd_loss(self, iteration: Iteration, tensors: Any, gradients: Any) -> float:
        """The loss where it is scaled, in a sequence, on a device, or not a plain tensor."""
        if iteration.scaled_id:
            is_ours = iteration.scaled_id == id(tensors)
            iteration.scaled_id = 0
            if is_ours:
                tensors = iteration.raw_loss
                iteration.raw_loss = NULL_F64
                if isinstance(tensors, float):
                    return tensors
        if type(tensors) in (tuple, list) and len(tensors) == 1:
            tensors = tensors[0]
        if not isinstance(tensors, torch.Tensor) or gradients is not None:
            return NULL_F64
        if tensors.is_cpu:
            return float(tensors.item())
        place = self.device_losses.copy(tensors)
        if place is not None:
            if iteration.pending is None or iteration.has_stepped:
                iteration.pending = []
            iteration.pending.append(place)
        return NULL_F64

    def put_later(self, iteration: Iteration, put: Callable[..., bool] | None) -> Callable[..., Any] | None:
        """A stand-in for the ring's writer that waits for the losses of this step."""
        places, later = iteration.pending, self.device_losses
        if put is None or places is None:
            return put
        iteration.pending = None
        return lambda *values: later.put_later(places, put, values)

    def add_loss(self, iteration: Iteration, loss: float) -> None:
        """A further backward before the step: accumulation adds up, a closure's first loss is the step's."""
        if not iteration.depth:
            iteration.loss += loss
            return
        if not iteration.closure_backwards:
            iteration.loss = loss
        iteration.closure_backwards += 1

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
            self._spent_ns = self._counted = 0
            self.put = self.ring.writer(_PACK_STEP)
        return self.put

    # Gradient scaler -------------------------------------------------------------------------------

    def loss_scaled(self, raw: Any, scaled: Any) -> None:
        """AMP multiplied a loss; remember the true one for the backward of the product."""
        if isinstance(raw, torch.Tensor) and raw.numel() == 1:
            iteration = self.local.iteration
            iteration.raw_loss = raw.item() if raw.is_cpu else raw.detach()
            iteration.scaled_id = id(scaled)

    def scaler_stepped(self, completed_before: int) -> None:
        """The scaler's step returned; without an optimizer step it was skipped for infinite gradients."""
        iteration = self.local.iteration
        if iteration.completed == completed_before:
            iteration.skipped += 1
            iteration.has_stepped = True

    # Housekeeping ------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Recording ends: write what was held back, and the final counts."""
        self.tracer.stop()
        self.device_losses.finish()
        if self.ring is not None:
            self.ring.set_word(Word.STEPS, self.session.steps)

    def keep_house(self, iteration: Iteration, watched: Watched, step: int, now: int) -> None:
        """Every few milliseconds: account for what observing cost and decide what to sample next."""
        elapsed_ns = now - iteration.kept_ns if iteration.kept_ns else 0
        iteration.kept_ns = now
        steps = iteration.completed - self._counted if iteration.completed > self._counted else 1
        self._counted = iteration.completed
        self.tracer.step_ended(watched, now - iteration.optimizer_start_ns, step)
        sampled_ns = self.layers.spent_ns + self.tracer.spent_ns
        self.layers.spent_ns = self.tracer.spent_ns = 0
        always_on_ns = max(iteration.spent_ns - sampled_ns, 0) + _UNSEEN_NS * steps
        iteration.spent_ns = 0
        self._spent_ns += always_on_ns + sampled_ns
        self.budget.earn(elapsed_ns, always_on_ns)
        watched.alarm.learn(iteration.loss)
        purses = self.budget.purses
        self.is_due = purses["norm"].can_afford() or ("layers" in purses and purses["layers"].can_afford())
        if self.ring is not None:
            self.ring.set_word(Word.SPENT_NS, self._spent_ns)
            self.ring.set_word(Word.STEPS, self.session.steps)
            self.ring.set_word(Word.LAST_STEP_NS, now + self.session.offset_ns)

    # Samples -----------------------------------------------------------------------------------------

    def sample(self, watched: Watched, iteration: Iteration) -> None:
        """Take the gradient norm, or all layer statistics, if due or if something looks wrong."""
        self.is_due = False
        alarm = watched.alarm
        is_urgent = not alarm.low <= iteration.loss <= alarm.high and alarm.rings_for_loss(iteration.loss)
        layers = self.budget.purses.get("layers")
        if layers is not None and (watched.is_new_structure or is_urgent or layers.can_afford()):
            watched.is_new_structure = False
            self._sample_layers(watched, iteration)
            return
        norm = self.budget.purses["norm"]
        if norm.can_afford() or is_urgent or watched.is_new_structure:
            watched.is_new_structure = False
            start = monotonic_ns()
            iteration.norm = norm_of([param.grad for param in watched.params])
            spent = monotonic_ns() - start
            norm.pay(spent)
            self.layers.spent_ns += spent
            if alarm.rings_for_norm(iteration.norm) and layers is not None:
                self._sample_layers(watched, iteration)

    def _sample_layers(self, watched: Watched, iteration: Iteration) -> None:
        start = monotonic_ns()
        iteration.norm = self.layers.take(watched, self.session.steps)
        watched.alarm.rings_for_norm(iteration.norm)
        optimizer = watched.optimizer()
        if optimizer is not None:
            watched.allocated_bytes = tensor_bytes_of(optimizer, watched.params)
            self.peak_bytes = max(self.peak_bytes, watched.allocated_bytes, self.tracer.peak_bytes)
        self.session.look_after_drainer()
        spent = monotonic_ns() - start
        self.budget.purses["layers"].pay(spent)
        self.layers.spent_ns += spent

    # Optimizers --------------------------------------------------------------------------------------

    def enter(self, iteration: Iteration, optimizer: torch.optim.Optimizer) -> Watched:
        """Another optimizer than last time, or a new one."""
        identity = id(optimizer)
        watched = self._watched.get(identity)
        if watched is None or watched.optimizer() is not optimizer:
            watched = self._meet(optimizer)
        iteration.owner = identity
        iteration.watched = watched
        return watched

    def _meet(self, optimizer: torch.optim.Optimizer) -> Watched:
        """Get to know an optimizer at its first step."""
        identity = id(optimizer)
        self._count += 1
        named = self.names.of(optimizer)
        params = [param for group in optimizer.param_groups for param in group["params"]]
        is_new = named.layers not in self._alarms
        watched = Watched(
            number=self._count,
            optimizer=weakref.ref(optimizer, lambda _: self._watched.pop(identity, None)),
            params=params,
            named=named,
            model_id=self.session.name_id(named.model) if named.model else NULL_I32,
            alarm=self._alarms.setdefault(named.layers, Alarm()),
            is_new_structure=is_new,
            allocated_bytes=tensor_bytes_of(optimizer, params),
        )
        watched.start = self.layers.copy_of_start(params)
        watched.layer_ids = [self.session.name_id(name) for name in named.layers]
        self._watched[identity] = watched
        self.is_due = self.is_due or is_new
        return watched

