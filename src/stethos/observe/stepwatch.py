"""Watches optimizer steps: one row each, and samples of layers and modules as the budget allows.

Everything here runs on the training thread. The always-on part takes a few
microseconds: two hooks of the optimizer, one wrapper around backward, one
around the data loader. Each callback is guarded by its caller.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from stethos.clock import monotonic_ns
from stethos.observe.alarm import Alarm
from stethos.observe.budget import Budget
from stethos.observe.context import turn
from stethos.observe.iteration import Iteration, Iterations
from stethos.observe.layer_name import LayerNames, Named
from stethos.observe.sample import LayerSampler, tensor_bytes_of
from stethos.observe.session import Session
from stethos.observe.statistic import norm_of
from stethos.observe.tracer import ModuleTracer
from stethos.record.layout import SLOT_PACKERS, Word
from stethos.schema import NULL_F64, NULL_I32, NULL_I64, STEPS

_PACK_STEP = SLOT_PACKERS[STEPS.number].pack_into
_DISPATCH_NS = 1500  # what torch and Python spend to reach our callbacks, measured


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
    """The callbacks and what they share; one per session."""

    def __init__(self, session: Session, names: LayerNames) -> None:
        self.session = session
        self.names = names
        self.iterations = Iterations()
        self.budget = Budget(session.settings.overhead, {"norm": 0.3, "layers": 0.5, "modules": 0.2})
        self.norm_purse = self.budget.purses["norm"]
        self.layer_purse = self.budget.purses["layers"]
        self.layers = LayerSampler(session)
        self.tracer = ModuleTracer(session, self.budget.purses["modules"])
        self.peak_bytes = NULL_I64
        self._watched: dict[int, Watched] = {}
        self._alarms: dict[tuple[str, ...], Alarm] = {}
        self._count = 0

    # Data ------------------------------------------------------------------------------------------

    def batch_arrived(self, start_ns: int, batch: object) -> None:
        """A data loader handed out a batch; it counts once a backward follows."""
        if not torch.is_grad_enabled():
            return
        iteration = self.iterations.now
        now = monotonic_ns()
        iteration.batch_data_ns += now - start_ns
        iteration.batch_samples = _samples_in(batch)
        iteration.has_batch = True
        iteration.mark_ns = now

    # Backward --------------------------------------------------------------------------------------

    def backward_begins(self, tensors: Any, gradients: Any) -> Iteration | None:
        """Note the loss; None if this backward is part of another."""
        now = monotonic_ns()
        iteration = self.iterations.now
        if iteration.in_backward:
            return None
        iteration.in_backward = True
        if iteration.mark_ns:
            iteration.forward_ns += now - iteration.mark_ns
        iteration.data_ns += iteration.batch_data_ns
        iteration.samples += iteration.batch_samples
        iteration.batch_data_ns = iteration.batch_samples = 0
        loss = self._loss_of(iteration, tensors, gradients)
        if iteration.depth:  # a closure inside the optimizer's step: its first loss is the step's
            if not iteration.closure_backwards:
                iteration.loss = loss
            iteration.closure_backwards += 1
        elif iteration.has_stepped:
            iteration.loss = loss
            iteration.has_stepped = False
        else:
            iteration.loss += loss  # accumulation: the step follows the gradient of the sum
        iteration.backwards += 1
        self.tracer.backward_begins()
        end = monotonic_ns()
        iteration.spent_ns += end - now
        iteration.backward_start_ns = end
        return iteration

    def _loss_of(self, iteration: Iteration, tensors: Any, gradients: Any) -> float:
        if iteration.scaled_id and iteration.scaled_id == id(tensors):
            iteration.scaled_id = 0
            return iteration.raw_loss
        if type(tensors) in (tuple, list):
            if len(tensors) != 1:
                return NULL_F64
            tensors = tensors[0]
        if gradients is not None or not tensors.is_cpu:
            return NULL_F64
        return tensors.item()  # type: ignore[no-any-return]

    def backward_ended(self, iteration: Iteration) -> None:
        now = monotonic_ns()
        iteration.backward_ns += now - iteration.backward_start_ns
        iteration.in_backward = False
        iteration.mark_ns = now
        self.tracer.backward_ended()

    # Gradient scaler -------------------------------------------------------------------------------

    def loss_scaled(self, raw: Any, scaled: Any) -> None:
        """AMP multiplied a loss; remember the true one for the backward of the product."""
        if isinstance(raw, torch.Tensor) and raw.numel() == 1 and raw.is_cpu:
            iteration = self.iterations.now
            iteration.raw_loss = raw.item()
            iteration.scaled_id = id(scaled)

    def scaler_stepped(self, completed_before: int) -> None:
        """The scaler's step returned; without an optimizer step it was skipped for infinite gradients."""
        iteration = self.iterations.now
        if iteration.completed == completed_before:
            iteration.skipped += 1
            iteration.has_stepped = True

    # Optimizer ---------------------------------------------------------------------------------------

    def step_begins(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Gradients are ready: take what samples are due."""
        now = monotonic_ns()
        iteration = self.iterations.now
        identity = id(optimizer)
        if iteration.depth and iteration.owner != identity:
            iteration.depth += 1
            return
        iteration.depth = 1
        iteration.owner = identity
        iteration.closure_backwards = 0
        iteration.norm = NULL_F64
        watched = self._watched.get(identity)
        if watched is None or watched.optimizer() is not optimizer:
            watched = self._meet(optimizer)
        iteration.entry = watched
        has_closure = len(args) > 1 or bool(kwargs)
        if not has_closure:
            self._sample(watched, iteration)
        end = monotonic_ns()
        iteration.spent_ns += end - now
        iteration.optimizer_start_ns = end

    def step_ended(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Write the step's row."""
        now = monotonic_ns()
        iteration = self.iterations.now
        iteration.depth -= 1
        if iteration.depth > 0:
            return
        iteration.depth = 0
        watched: Watched = iteration.entry
        if iteration.closure_backwards:
            self._sample(watched, iteration)
        session = self.session
        ring = session.ring if session.ring is not None else session.open()
        step = session.steps
        session.steps = step + 1
        optimizer_ns = now - iteration.optimizer_start_ns
        is_first = watched.local_step == 0
        step_ns = 0 if is_first else now - iteration.last_end_ns
        forward_is_known = iteration.backwards and (iteration.has_batch or not is_first)
        if ring is not None:
            client, round_ = turn()
            ring.put(
                _PACK_STEP, 1, 0, client, round_, watched.number, step, now + session.offset_ns,
                watched.local_step, watched.model_id, iteration.loss, _lr_of(optimizer), iteration.norm,
                step_ns * 1e-6 if step_ns else NULL_F64,
                iteration.data_ns * 1e-6 if iteration.has_batch else NULL_F64,
                iteration.forward_ns * 1e-6 if forward_is_known else NULL_F64,
                iteration.backward_ns * 1e-6 if iteration.backwards else NULL_F64,
                optimizer_ns * 1e-6, iteration.samples or NULL_I32, iteration.backwards, iteration.skipped,
                watched.allocated_bytes, self.peak_bytes,
            )  # fmt: skip
        watched.local_step += 1
        self.tracer.step_ended(watched, optimizer_ns, step)
        iteration.begin()
        iteration.has_stepped = True
        iteration.completed += 1
        iteration.skipped = 0
        iteration.last_end_ns = now
        end = monotonic_ns()
        iteration.mark_ns = end
        spent = iteration.spent_ns + end - now + _DISPATCH_NS
        iteration.spent_ns = 0
        self._account(ring, step_ns, spent, now)

    def _account(self, ring: Any, step_ns: int, spent_ns: int, now: int) -> None:
        """Add up what observing cost, and credit the budget."""
        sampled_ns = self.layers.spent_ns + self.tracer.spent_ns
        self.layers.spent_ns = self.tracer.spent_ns = 0
        self.budget.earn(step_ns, spent_ns - sampled_ns)
        if ring is not None:
            self._spent_ns = getattr(self, "_spent_ns", 0) + spent_ns
            ring.set_word(Word.SPENT_NS, self._spent_ns)
            ring.set_word(Word.STEPS, self.session.steps)
            ring.set_word(Word.LAST_STEP_NS, now + self.session.offset_ns)

    def _sample(self, watched: Watched, iteration: Iteration) -> None:
        """Take the gradient norm, or all layer statistics, if due or if something looks wrong."""
        is_urgent = watched.alarm.wants_sample(iteration.loss)
        if watched.is_new_structure or is_urgent or self.layer_purse.can_afford():
            watched.is_new_structure = False
            self._sample_layers(watched, iteration)
            self.session.look_after_drainer()
        elif self.norm_purse.can_afford() or not self.norm_purse.is_known:
            start = monotonic_ns()
            iteration.norm = norm_of([param.grad for param in watched.params])
            spent = monotonic_ns() - start
            self.norm_purse.pay(spent)
            self.layers.spent_ns += spent
            if watched.alarm.hears_norm(iteration.norm):
                self._sample_layers(watched, iteration)

    def _sample_layers(self, watched: Watched, iteration: Iteration) -> None:
        start = monotonic_ns()
        if self.session.settings.preset != "light":
            iteration.norm = self.layers.take(watched, self.session.steps)
        else:
            iteration.norm = norm_of([param.grad for param in watched.params])
        optimizer = watched.optimizer()
        if optimizer is not None:
            watched.allocated_bytes = tensor_bytes_of(optimizer, watched.params)
            self.peak_bytes = max(self.peak_bytes, watched.allocated_bytes, self.tracer.peak_bytes)
        spent = monotonic_ns() - start
        self.layer_purse.pay(spent)
        self.layers.spent_ns += spent

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
        )
        watched.start = self.layers.copy_of_start(params)
        watched.layer_ids = [self.session.name_id(name) for name in named.layers]
        self._watched[identity] = watched
        return watched


def _lr_of(optimizer: torch.optim.Optimizer) -> float:
    rate = optimizer.param_groups[0].get("lr")
    if type(rate) is float:
        return rate
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.is_cpu else NULL_F64
    return NULL_F64 if rate is None else float(rate)


def _samples_in(batch: object) -> int:
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
