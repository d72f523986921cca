"""The four callbacks that run in every training step, as flat as they can be.

Where `_hot.c` could be built its callbacks are taken instead: the same ones, from the same parts, in about a fifth of
the time. What follows is about those in Python.

Between two steps torch evicts our code and data from the caches, so what a
callback costs is what it touches: measured inside a 345 us step on a busy
machine, the same work took about 35 us as small guarded methods, 23 us flat,
and 5 us in a tight loop. A call into C that nothing else in the step makes
costs 0.2 to 0.5 us however little it does (`get_ident` 0.3, `threading.local`
0.45), `size(0)` 0.7, `item()` 1.4, `**kwargs` passed on 1.0, a row by
`pack_into` 4.8 and word by word 2.6. Hence the rules of this file: no call
that can be spared, names bound once, everything that can wait is left to
`StepRecorder.account`, and the guard's `try` stands here instead of in a
wrapper (`except Exception` hands over to the guard at once).
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import CO_VARARGS, CO_VARKEYWORDS
from math import isfinite
from threading import get_ident
from typing import Any

import torch

from stethos.clock import monotonic_ns
from stethos.native import NATIVE
from stethos.observe.alarm import is_null
from stethos.observe.context import TURN, turn
from stethos.observe.iteration import STEP_ROW
from stethos.observe.late_row import Mark
from stethos.observe.spans import note_begin, note_end
from stethos.observe.step_recorder import StepRecorder
from stethos.schema import NULL_F64

_LONG_NS = 1_000_000_000  # after the time for accounting: steps have become rare


def _parts(watch: StepRecorder, original: Callable[..., Any] | None = None) -> tuple[Any, ...]:
    """What a callback in C is made of. Tensors are read by torch's own functions, past what a program may patch."""
    base = torch._C.TensorBase
    parts = {
        "original": original, "tensor": torch.Tensor, "is_training": torch.is_grad_enabled, "item": base.item,
        "modes": torch._C._len_torch_dispatch_stack, "is_cpu": base.__dict__["is_cpu"], "is_neg": base.is_neg,
        "turn": TURN, "mark": Mark.OPTIMIZER, "note_begin": note_begin, "note_end": note_end,
    }  # fmt: skip
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    return watch, watch.local, watch.session, base, exchange, parts


def wrap_next_batch(watch: StepRecorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Times a data loader's `__next__`. A batch counts once a backward follows; the end of the data ends an epoch."""
    if NATIVE is not None:
        return NATIVE.NextBatch(*_parts(watch, original))  # type: ignore[no-any-return]
    clock, local, failed, Tensor = monotonic_ns, watch.local, watch.failed, torch.Tensor
    session = watch.session
    is_training, ident, home = torch.is_grad_enabled, get_ident, watch.local.home

    def next_batch(iterator: Any) -> Any:
        start_ns = clock()
        try:
            batch = original(iterator)
        except StopIteration:
            if watch.is_active:
                session.guard.run("epochs", note_end, session, iterator, clock())
            raise
        try:
            if is_training() and watch.is_active:
                is_first = iterator._num_yielded == 1
                if is_first:
                    note_begin(session, iterator, start_ns)
                iteration = home if ident() == local.home_thread else local.iteration
                iteration.mark_ns = now = clock()
                iteration.batch_data_ns += now - start_ns
                if now > iteration.account_at_ns + _LONG_NS:
                    watch.beat()
                samples = len(first) if type(first := _first_of(batch)) is Tensor and first.dim() else 0
                iteration.batch_came(id(iterator), samples or watch.samples_in(batch), is_first=is_first)
                if iteration.device_mark is not None:
                    watch.batch_came(iteration)
            elif watch.is_active:  # an evaluation: let it be seen from outside that it goes on
                watch.beat()
        except Exception as error:
            failed("data", error)
        return batch

    return next_batch


def _first_of(batch: Any) -> Any:
    return batch[0] if type(batch) is list and batch else batch


def wrap_backward(watch: StepRecorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Notes the loss that `torch.autograd.backward` is given, and its duration. `Tensor.backward` ends up here too.

    Its parameters are passed on by position, a microsecond less than `**kwargs`; a `backward` that has others, of a
    newer torch or somebody's wrapper, gets its arguments as they came.
    """
    if NATIVE is not None:
        return NATIVE.Backward(*_parts(watch, original))  # type: ignore[no-any-return]
    if _parameters_of(original) == _BACKWARD_PARAMETERS:
        return _wrap_known_backward(watch, original)

    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        def passing(tensors: Any, grad_tensors: Any, *_: Any) -> None:
            original(tensors, grad_tensors, *args, **kwargs)

        _wrap_known_backward(watch, passing)(tensors, grad_tensors)

    return backward


def _may_be_loss(tensor: torch.Tensor) -> bool:
    return tensor.numel() == 1 and not tensor.is_complex()


_BACKWARD_PARAMETERS = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")


def _parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of its parameters if each can be given by position, else nothing."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & (CO_VARARGS | CO_VARKEYWORDS) or code.co_kwonlyargcount:
        return ()
    return tuple(code.co_varnames[: code.co_argcount])


def _wrap_known_backward(watch: StepRecorder, original: Callable[..., Any]) -> Callable[..., Any]:
    clock, local, failed, Tensor, tracer = monotonic_ns, watch.local, watch.failed, torch.Tensor, watch.tracer
    guard, modes = watch.session.guard.run, torch._C._len_torch_dispatch_stack
    ident, home = get_ident, watch.local.home

    def backward(
        tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: Any = False,
        grad_variables: Any = None, inputs: Any = None,
    ) -> None:  # fmt: skip
        start_ns = 0
        try:
            iteration = home if ident() == local.home_thread else local.iteration
            if not iteration.in_backward and watch.is_active:
                if iteration.mark_ns:
                    iteration.forward_ns += clock() - iteration.mark_ns
                iteration.data_ns += iteration.batch_data_ns
                iteration.batch_data_ns = 0
                if iteration.ahead and not iteration.closure_backwards:
                    iteration.samples += iteration.ahead.pop(0)
                if (
                    type(tensors) is Tensor and grad_tensors is None and tensors.is_cpu
                    and not iteration.scaled and not modes()
                ):  # fmt: skip
                    loss = float(tensors.item())
                else:
                    loss = watch.odd_loss(iteration, tensors, grad_tensors)
                if not isfinite(loss) and not is_null(loss):
                    watch.loss_broke(tensors, loss)
                if iteration.has_stepped and not iteration.depth:
                    iteration.loss = loss
                    iteration.has_stepped = False
                else:
                    watch.add_loss(iteration, loss)
                iteration.backwards_ever += 1
                if iteration.is_traced:
                    tracer.backward_begins()
                completed = iteration.completed
                iteration.in_backward = True
                start_ns = clock()
        except Exception as error:
            if not isinstance(tensors, Tensor) or _may_be_loss(tensors):  # else torch will say that it is none
                failed("loss", error)
        if not start_ns:
            original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            return
        try:
            original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
        except BaseException:
            iteration.has_stepped = True  # what it has summed up so far is not going to be applied
            raise
        finally:
            iteration.in_backward = False
            iteration.mark_ns = now = clock()
            if completed == iteration.completed:  # else an optimizer stepped inside, and its row is written
                iteration.backward_ns += now - start_ns
            if iteration.depth:  # in a closure: what the optimizer does itself begins again
                iteration.optimizer_start_ns = now
            if iteration.pending is not None:
                guard("device", watch.backward_ended, iteration)
            if iteration.is_traced:
                guard("modules", tracer.backward_ended)

    return backward


def step_begins_callback(watch: StepRecorder) -> Callable[..., None]:
    """Before an optimizer's step: gradients are ready, take what samples are due."""
    if NATIVE is not None:
        return NATIVE.StepBegins(*_parts(watch))  # type: ignore[no-any-return]
    clock, local, failed = monotonic_ns, watch.local, watch.failed
    ident, home = get_ident, watch.local.home
    OPTIMIZER = Mark.OPTIMIZER

    def step_begins(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            if not watch.is_active:
                return
            iteration = home if ident() == local.home_thread else local.iteration
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
            elif iteration.step >= watch.sample_at or not (
                iteration.pending is not None or watched.alarm.low <= iteration.loss <= watched.alarm.high
            ):  # a loss that is still on its way from a device rings no alarm
                watch.sample(watched, iteration)
            if watch.next_step_call is not None:
                watch.next_step_call(optimizer)
            if iteration.pending is not None:
                iteration.pending.mark(OPTIMIZER)
            iteration.optimizer_start_ns = clock()
        except Exception as error:
            failed("steps", error)

    return step_begins


def step_ended_callback(watch: StepRecorder) -> Callable[..., None]:
    """After an optimizer's step: write its row. The drainer makes ms of its times and knows the NULLs."""
    if NATIVE is not None:
        return NATIVE.StepEnded(*_parts(watch))  # type: ignore[no-any-return]
    clock, local, failed, session = monotonic_ns, watch.local, watch.failed, watch.session
    offset_ns = session.offset_ns
    number_of, ident, home = watch.number_of, get_ident, watch.local.home

    def step_ended(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            if not watch.is_active:
                return
            now = clock()
            iteration = home if ident() == local.home_thread else local.iteration
            iteration.depth -= 1
            watched = iteration.watched
            if iteration.depth or watched is None:
                iteration.depth = max(iteration.depth, 0)
                return
            iteration.has_stepped = True
            if iteration.closure_backwards:
                began_ns = clock()
                watch.sample(watched, iteration)
                iteration.spent_ns -= clock() - began_ns
            step = iteration.step
            if step >= session.steps:
                session.steps = step + 1
            if session.ring is not watch.ring:
                watch.reopen()
            groups = optimizer.param_groups
            rate = groups[0].get("lr") if groups else None
            iteration.lr = rate if type(rate) is float else number_of(rate)
            backwards = iteration.backwards_ever
            if backwards == watched.backwards_seen:  # none since its last step: the loss is an older one
                iteration.loss = NULL_F64
            watched.backwards_seen = backwards
            whose = turn()
            if whose is not watched.turn:
                watched.take_turn(whose)
            if whose[2] is not None:
                whose[2].add(iteration.loss, iteration.samples)
            iteration.client, iteration.round, iteration.optimizer = watched.client, watched.round, watched.number
            iteration.model, iteration.local_step = watched.model, watched.local_step
            watched.local_step += 1
            iteration.allocated_bytes, iteration.peak_bytes = watched.allocated_bytes, watch.peak_bytes
            iteration.t_ns = now + offset_ns
            iteration.step_ns = now - iteration.last_end_ns
            iteration.optimizer_ns = now - iteration.optimizer_start_ns
            iteration.backwards = backwards - iteration.backwards_before
            if iteration.pending is not None:
                watch.put_later(iteration)
            elif watch.put is not None:
                watch.put(*STEP_ROW(iteration))
            iteration.step = -1
            if now > iteration.account_at_ns:
                watch.account(iteration, watched, step, now)
            iteration.grad_norm = NULL_F64
            iteration.backwards_before = backwards
            iteration.skipped = iteration.samples = iteration.closure_backwards = 0
            iteration.data_ns = iteration.forward_ns = iteration.backward_ns = 0.0
            iteration.completed += 1
            iteration.last_end_ns = now
            iteration.mark_ns = end = clock()
            iteration.spent_ns += end - now
        except Exception as error:
            failed("steps", error)

    return step_ended
