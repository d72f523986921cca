"""Puts our callbacks where torch calls them, and takes every one away again.

Callbacks are wrapped with `torch._disable_dynamo`, so that a compiled train
step runs them outside its graphs: neither blind nor traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stethos.clock import monotonic_ns
from stethos.observe.layer_name import LayerNames
from stethos.observe.session import Session
from stethos.observe.stepwatch import StepWatch


class TorchWatch:
    """Everything installed into torch for one session. `uninstall` undoes it; a second `install` is no effect."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.names = LayerNames()
        self.steps = StepWatch(session, self.names)
        self._undo: list[Callable[[], object]] = []
        self._is_active = False

    def install(self) -> None:
        if self._is_active:
            return
        self._is_active = True
        guard, steps = self.session.guard, self.steps
        begins = _undynamo(guard.wrap("steps", steps.step_begins))
        ended = _undynamo(guard.wrap("steps", steps.step_ended))
        self._undo.append(register_optimizer_step_pre_hook(begins).remove)  # type: ignore[arg-type]
        self._undo.append(register_optimizer_step_post_hook(ended).remove)  # type: ignore[arg-type]
        self._replace(torch.autograd, "backward", self._backward)
        self._replace(_BaseDataLoaderIter, "__next__", self._next_batch)
        self._replace(torch.amp.GradScaler, "scale", self._scale)
        self._replace(torch.amp.GradScaler, "step", self._scaler_step)
        self._replace(torch, "compile", self._compile)
        self.session.on_close.append(self.uninstall)

    def uninstall(self) -> None:
        """Give torch its own functions back."""
        self._is_active = False
        self.steps.tracer.stop()
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: Any, name: str, wrapper_of: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Wrap a function of torch's; if somebody wraps ours in turn, ours stays inside it and only passes on."""
        original = getattr(owner, name)
        wrapper = functools.wraps(original)(wrapper_of(original))
        setattr(owner, name, wrapper)

        def restore() -> None:
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)

        self._undo.append(restore)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        begins = self.session.guard.wrap("loss", self.steps.backward_begins)
        ended = self.session.guard.wrap("loss", self.steps.backward_ended)

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            if not self._is_active:
                return original(tensors, grad_tensors, *args, **kwargs)  # type: ignore[no-any-return]
            iteration = begins(tensors, grad_tensors)
            try:
                original(tensors, grad_tensors, *args, **kwargs)
            finally:
                if iteration is not None:
                    ended(iteration)

        return _undynamo(backward)

    def _next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        arrived = self.session.guard.wrap("data", self.steps.batch_arrived)

        def next_batch(iterator: Any) -> Any:
            start_ns = monotonic_ns()
            batch = original(iterator)
            if self._is_active:
                arrived(start_ns, batch)
            return batch

        return next_batch

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        noted = self.session.guard.wrap("scaler", self.steps.loss_scaled)

        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if self._is_active:
                noted(outputs, scaled)
            return scaled

        return _undynamo(scale)

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        noted = self.session.guard.wrap("scaler", self.steps.scaler_stepped)

        def step(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.steps.iterations.now.completed
            result = original(scaler, *args, **kwargs)
            if self._is_active:
                noted(before)
            return result

        return _undynamo(step)

    def _compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        refuse = self.session.guard.wrap("modules", self.steps.tracer.refuse)

        def compile(*args: Any, **kwargs: Any) -> Any:
            if self._is_active:
                refuse("torch.compile is in use: module hooks would change its graphs")
            return original(*args, **kwargs)

        return compile


def _undynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch._disable_dynamo(function)  # type: ignore[no-any-return]
