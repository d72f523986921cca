"""The four callbacks that run in every training step, as flat as they can be.

Between two steps torch evicts our code and data from the caches, so what a
callback costs is what it touches: measured inside a 345 us step on a busy
machine, the same work took about 35 us as small guarded methods, 23 us like
this, and 5 us in a tight loop. Hence the rules
of this file: no call that can be spared, names bound once, everything that
can wait is left to `StepWatch.keep_house`, and the guard's `try` stands here
instead of in a wrapper (`except Exception` hands over to the guard at once).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stethos.clock import monotonic_ns
from stethos.observe.context import turn
from stethos.observe.stepwatch import KEEP_HOUSE_NS, StepWatch
from stethos.schema import NULL_F64


def wrap_next_batch(watch: StepWatch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Times a data loader's `__next__`. A batch counts once a backward follows; the end of the data never does."""
    clock, local, failed, Tensor = monotonic_ns, watch.local, watch.failed, torch.Tensor
    is_training = torch.is_grad_enabled

    def next_batch(iterator: Any) -> Any:
        start_ns = clock()
        batch = original(iterator)
        try:
            if is_training() and watch.is_active:
                iteration = local.iteration
                iteration.mark_ns = now = clock()
                iteration.batch_data_ns += now - start_ns
                first = batch[0] if type(batch) is list else batch
                iteration.batch_samples = first.size(0) if type(first) is Tensor else watch.samples_in(batch)
        except IndexError:  # a batch of nothing, or of a scalar
            iteration.batch_samples = watch.samples_in(batch)
        except Exception as error:
            failed("data", error)
        return batch

    return next_batch


def wrap_backward(watch: StepWatch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Notes the loss that `torch.autograd.backward` is given, and its duration. `Tensor.backward` ends up here too."""
    clock, local, failed, Tensor, tracer = monotonic_ns, watch.local, watch.failed, torch.Tensor, watch.tracer
    guard, modes = watch.session.guard.run, torch._C._len_torch_dispatch_stack

    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        start_ns = 0
        try:
            iteration = local.iteration
            if not iteration.in_backward and watch.is_active:
                if iteration.mark_ns:
                    iteration.forward_ns += clock() - iteration.mark_ns
                if iteration.batch_data_ns:
                    iteration.data_ns += iteration.batch_data_ns
                    iteration.samples += iteration.batch_samples
                    iteration.batch_data_ns = iteration.batch_samples = 0
                if (
                    type(tensors) is Tensor and grad_tensors is None and tensors.is_cpu
                    and not iteration.scaled and not modes()
                ):  # fmt: skip
                    loss = tensors.item()
                else:
                    loss = watch.odd_loss(iteration, tensors, grad_tensors)
                if iteration.has_stepped and not iteration.depth:
                    iteration.loss = loss
                    iteration.has_stepped = False
                else:
                    watch.add_loss(iteration, loss)
                iteration.backwards += 1
                if tracer.is_on:
                    tracer.backward_begins()
                completed = iteration.completed
                iteration.in_backward = True
                start_ns = clock()
        except Exception as error:
            if not isinstance(tensors, Tensor) or tensors.numel() == 1:  # else torch will say that it is no loss
                failed("loss", error)
        if not start_ns:
            original(tensors, grad_tensors, *args, **kwargs)
            return
        try:
            original(tensors, grad_tensors, *args, **kwargs)
        except BaseException:
            iteration.has_stepped = True  # what it has summed up so far is not going to be applied
            raise
        finally:
            iteration.in_backward = False
            iteration.mark_ns = now = clock()
            if completed == iteration.completed:  # else an optimizer stepped inside, and its row is written
                iteration.backward_ns += now - start_ns
            if tracer.is_on:
                guard("modules", tracer.backward_ended)

    return backward


def step_begins_callback(watch: StepWatch) -> Callable[..., None]:
    """Before an optimizer's step: gradients are ready, take what samples are due."""
    clock, local, failed = monotonic_ns, watch.local, watch.failed

    def step_begins(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            if not watch.is_active:
                return
            now = clock()
            iteration = local.iteration
            watched = iteration.watched
            if iteration.depth and iteration.owner != id(optimizer) and watch.is_inside(iteration.depth + 1):
                iteration.depth += 1
                return
            if watched is None or watched.optimizer() is not optimizer:
                watched = watch.enter(iteration, optimizer)
            iteration.depth = 1
            if iteration.step < 0:  # else a step that raised has left its number
                iteration.step = watch.number()
            if (len(args) > 1 or kwargs) and watch.has_closure(args, kwargs):  # gradients come later
                iteration.closure_backwards = 0
            elif watch.is_due or not watched.alarm.low <= iteration.loss <= watched.alarm.high:
                watch.sample(watched, iteration)
            iteration.optimizer_start_ns = end = clock()
            iteration.spent_ns += end - now
        except Exception as error:
            failed("steps", error)

    return step_begins


def step_ended_callback(watch: StepWatch) -> Callable[..., None]:
    """After an optimizer's step: write its row. Times go as ns; the drainer makes ms of them and knows the NULLs."""
    clock, local, failed, session, tracer = monotonic_ns, watch.local, watch.failed, watch.session, watch.tracer
    number_of = watch.number_of

    def step_ended(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            if not watch.is_active:
                return
            now = clock()
            iteration = local.iteration
            iteration.depth -= 1
            watched = iteration.watched
            if iteration.depth or watched is None:
                iteration.depth = max(iteration.depth, 0)
                return
            iteration.has_stepped = True
            if iteration.closure_backwards:
                watch.sample(watched, iteration)
            step = iteration.step
            iteration.step = -1
            if step >= session.steps:
                session.steps = step + 1
            put = watch.put if session.ring is watch.ring else watch.reopen()
            groups = optimizer.param_groups
            rate = groups[0].get("lr") if groups else None
            backwards = iteration.backwards
            if backwards == watched.backwards:  # none since its last step: the loss is an older one
                iteration.loss = NULL_F64
            watched.backwards = backwards
            client, round_, tally = turn()
            if tally is not None:
                tally.add(iteration.loss, iteration.samples)
            local_step = watched.local_step
            watched.local_step = local_step + 1
            if iteration.pending is not None:
                put = watch.put_later(iteration, put)
            if put is not None:
                put(
                    1, 0, client, round_, watched.number, step, now + session.offset_ns, local_step, watched.model_id,
                    iteration.loss, rate if type(rate) is float else number_of(rate), iteration.norm,
                    now - iteration.last_end_ns, iteration.data_ns, iteration.forward_ns, iteration.backward_ns,
                    now - iteration.optimizer_start_ns, iteration.samples, backwards - iteration.backwards_before,
                    iteration.skipped,
                    watched.allocated_bytes, watch.peak_bytes,
                )  # fmt: skip
            if now - iteration.kept_ns > KEEP_HOUSE_NS or tracer.is_on:
                watch.keep_house(iteration, watched, step, now)
            iteration.norm = NULL_F64
            iteration.backwards_before = backwards
            iteration.skipped = iteration.samples = iteration.closure_backwards = 0
            iteration.data_ns = iteration.forward_ns = iteration.backward_ns = 0
            iteration.completed += 1
            iteration.last_end_ns = now
            iteration.mark_ns = end = clock()
            iteration.spent_ns += end - now
        except Exception as error:
            failed("steps", error)

    return step_ended
