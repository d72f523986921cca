"""The four callbacks that run in every training step, as flat as they can be.

Between two steps torch evicts our code and data from the caches, so what a
callback costs is what it touches: measured inside a 370 us step, the same
work took 35 us as small guarded methods and 11 us like this. Hence the rules
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
            if is_training():
                iteration = local.iteration
                first = batch[0] if type(batch) is list else batch
                iteration.batch_samples = first.size(0) if type(first) is Tensor else watch.samples_in(batch)
                iteration.mark_ns = now = clock()
                iteration.batch_data_ns += now - start_ns
        except Exception as error:
            failed("data", error)
        return batch

    return next_batch


def wrap_backward(watch: StepWatch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Notes the loss that `torch.autograd.backward` is given, and its duration. `Tensor.backward` ends up here too."""
    clock, local, failed, Tensor, tracer = monotonic_ns, watch.local, watch.failed, torch.Tensor, watch.tracer

    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        iteration = local.iteration
        if iteration.in_backward or not watch.is_active:
            original(tensors, grad_tensors, *args, **kwargs)
            return
        iteration.in_backward = True
        try:
            if iteration.mark_ns:
                iteration.forward_ns += clock() - iteration.mark_ns
            if iteration.batch_data_ns:
                iteration.data_ns += iteration.batch_data_ns
                iteration.samples += iteration.batch_samples
                iteration.batch_data_ns = iteration.batch_samples = 0
            if type(tensors) is Tensor and grad_tensors is None and not iteration.scaled_id and tensors.is_cpu:
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
        except Exception as error:
            failed("loss", error)
        start_ns = clock()
        try:
            original(tensors, grad_tensors, *args, **kwargs)
        finally:
            iteration.mark_ns = now = clock()
            iteration.backward_ns += now - start_ns
            iteration.in_backward = False
            if tracer.is_on:
                tracer.backward_ended()

    return backward


def step_begins_callback(watch: StepWatch) -> Callable[..., None]:
    """Before an optimizer's step: gradients are ready, take what samples are due."""
    clock, local, failed = monotonic_ns, watch.local, watch.failed

    def step_begins(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            now = clock()
            iteration = local.iteration
            watched = iteration.watched
            if iteration.depth and iteration.owner != id(optimizer):
                iteration.depth += 1
                return
            if watched is None or watched.optimizer() is not optimizer:
                watched = watch.enter(iteration, optimizer)
            iteration.depth = 1
            if len(args) > 1 or kwargs:  # a closure: gradients come later
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
    number, number_of = watch.number, watch.number_of

    def step_ended(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            now = clock()
            iteration = local.iteration
            iteration.depth -= 1
            watched = iteration.watched
            if iteration.depth or watched is None:
                iteration.depth = max(iteration.depth, 0)
                return
            if iteration.closure_backwards:
                watch.sample(watched, iteration)
            step = number()
            session.steps = step + 1
            put = watch.put if session.ring is watch.ring else watch.reopen()
            rate = optimizer.param_groups[0]["lr"]
            client, round_ = turn()
            local_step = watched.local_step
            watched.local_step = local_step + 1
            if iteration.pending is not None:
                put = watch.put_later(iteration, put)
            if put is not None:
                put(
                    1, 0, client, round_, watched.number, step, now + session.offset_ns, local_step, watched.model_id,
                    iteration.loss, rate if type(rate) is float else number_of(rate), iteration.norm,
                    now - iteration.last_end_ns, iteration.data_ns, iteration.forward_ns, iteration.backward_ns,
                    now - iteration.optimizer_start_ns, iteration.samples, iteration.backwards, iteration.skipped,
                    watched.allocated_bytes, watch.peak_bytes,
                )  # fmt: skip
            if now - iteration.kept_ns > KEEP_HOUSE_NS or tracer.is_on:
                watch.keep_house(iteration, watched, step, now)
            iteration.norm = NULL_F64
            iteration.backwards = iteration.skipped = iteration.samples = iteration.closure_backwards = 0
            iteration.data_ns = iteration.forward_ns = iteration.backward_ns = 0
            iteration.has_stepped = True
            iteration.completed += 1
            iteration.last_end_ns = now
            iteration.mark_ns = end = clock()
            iteration.spent_ns += end - now
        except Exception as error:
            failed("steps", error)

    return step_ended

