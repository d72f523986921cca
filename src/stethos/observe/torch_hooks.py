"""Puts our callbacks where torch calls them, and takes every one away again.

A compiled train step must neither trace our callbacks nor leave them out.
`torch._disable_dynamo` around each would do, at several microseconds a step;
instead our directory is put on dynamo's list of code to skip as soon as
dynamo is in use, which costs nothing afterwards.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stethos.observe.collectives import CollectiveWatch
from stethos.observe.evaluation import wrap_enter, wrap_exit
from stethos.observe.hotpath import step_begins_callback, step_ended_callback, wrap_backward, wrap_next_batch
from stethos.observe.hyperparameters import note_scheduler
from stethos.observe.layer_name import LayerNames
from stethos.observe.repeat.step_repeater import StepRepeater
from stethos.observe.session import Session
from stethos.observe.step_recorder import StepRecorder

_FRAMES_UP = 3  # the place of this argument of `torch.jit.script`


class TorchHooks:
    """Everything installed into torch for one session. `uninstall` undoes it; a second `install` is no effect."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.names = LayerNames()
        self.steps = StepRecorder(session, self.names)
        self.collectives = CollectiveWatch(session)
        self.repeater = StepRepeater(self.steps, session.settings.sdc) if session.settings.sdc else None
        self._undo: list[Callable[[], object]] = []
        self._is_active = False

    def install(self) -> None:
        if self._undo:
            return
        self._is_active = self.steps.is_active = True
        self.steps.on_off = self._switch_off
        self.session.on_close.append(self.uninstall)
        try:
            self._install()
        except BaseException:
            self.uninstall()
            raise

    def _install(self) -> None:
        steps = self.steps
        self._undo.append(register_optimizer_step_pre_hook(step_begins_callback(steps)).remove)
        steps.step_ended = step_ended_callback(steps)
        self._undo.append(register_optimizer_step_post_hook(steps.step_ended).remove)
        self._replace(torch.autograd, "backward", lambda original: wrap_backward(steps, original))
        if self.repeater is not None:
            steps.inspector.check.modules.is_off = True  # a step with hooks on its modules cannot be repeated
            self._replace(torch.autograd, "backward", self.repeater.wrap_backward)
            self._undo.append(register_optimizer_step_post_hook(self.repeater.step_ended).remove)
            self._undo.append(self.repeater.uninstall)
        self._replace(_BaseDataLoaderIter, "__next__", lambda original: wrap_next_batch(steps, original))
        self._replace(torch.amp.GradScaler, "scale", self._scale)
        self._replace(torch.amp.GradScaler, "step", self._scaler_step)
        for scheduler in (LRScheduler, ReduceLROnPlateau):
            self._replace(scheduler, "__init__", self._scheduled)
        self._replace(torch, "compile", self._compile)
        self._replace(torch.jit, "script", self._script)
        self.session.guard.run("collectives", self.collectives.install)
        if "torch._dynamo" in sys.modules:
            self.session.guard.run("dynamo", hide_from_dynamo)
        self.session.on_fork.append(steps.after_fork)
        if self.session.settings.preset != "light":
            self._undo.append(steps.inspector.uninstall)
            steps.inspector.gradients.note = wrap_backward(steps, lambda *_: None)
            self.session.guard.run("inspection", steps.inspector.install)
            self._replace(_BaseDataLoaderIter, "__init__", self._pass)
            for block in (torch.no_grad, torch.inference_mode):
                self._replace(block, "__enter__", lambda original: wrap_enter(steps.inspector.evaluations, original))
                self._replace(block, "__exit__", lambda original: wrap_exit(steps.inspector.evaluations, original))

    def _switch_off(self) -> None:
        """From now on only pass on; write what was held back."""
        self._is_active = self.steps.is_active = False
        self.session.guard.run("close", self.steps.finish)

    def uninstall(self) -> None:
        """Give torch its own functions back."""
        if self._is_active:
            self.session.guard.run("inspection", self.steps.inspector.finish)
        self._switch_off()
        guard = self.session.guard
        while self._undo:
            guard.run("close", self._undo.pop())

    def _replace(self, owner: Any, name: str, wrapper_of: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Wrap a function of torch's; if somebody wraps ours in turn, ours stays inside it and only passes on."""
        original = getattr(owner, name)
        wrapper = functools.wraps(original)(wrapper_of(original))
        setattr(owner, name, wrapper)

        def restore() -> None:
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)

        self._undo.append(restore)

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        noted = self.session.guard.wrap("scaler", self.steps.loss_scaled)

        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if self._is_active:
                noted(outputs, scaled)
            return scaled

        return scale

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        noted = self.session.guard.wrap("scaler", self.steps.scaler_stepped)
        completed = self.session.guard.wrap("scaler", lambda: self.steps.local.iteration.completed)

        def step(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            before = completed() or 0
            result = original(scaler, *args, **kwargs)
            if self._is_active:
                noted(before)
            return result

        return step

    def _scheduled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        noted = self.session.guard.wrap("config", lambda scheduler: note_scheduler(self.session, scheduler))
        made = self.session.guard.wrap("inspection", self.steps.inspector.check.schedules.made)

        def init(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            original(scheduler, *args, **kwargs)
            if self._is_active:
                noted(scheduler)
                made(scheduler)

        return init

    def _pass(self, original: Callable[..., Any]) -> Callable[..., Any]:
        noted = self.session.guard.wrap("inspection", self.steps.inspector.check.pass_begins)

        def init(iterator: Any, *args: Any, **kwargs: Any) -> None:
            original(iterator, *args, **kwargs)
            if self._is_active:
                noted(iterator)

        return init

    def _script(self, original: Callable[..., Any]) -> Callable[..., Any]:
        refuse = self.session.guard.wrap("inspection", self.steps.inspector.refuse)

        def script(*args: Any, **kwargs: Any) -> Any:
            refuse()  # a script is made from the source of what it calls: that has to be torch's own
            if len(args) < _FRAMES_UP:  # names are looked up in the caller's frame, which is one further up
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
            return original(*args, **kwargs)

        return script

    def _compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hide = self.session.guard.wrap("dynamo", hide_from_dynamo)
        refuse = self.session.guard.wrap("modules", self.steps.tracer.refuse)

        def compile(*args: Any, **kwargs: Any) -> Any:
            if self._is_active:
                self.session.guard.run("inspection", self.steps.inspector.refuse)
                hide()
                refuse("torch.compile is in use: module hooks would change its graphs")
                if self.repeater is not None:
                    self.repeater.refuse("torch.compile is in use: module hooks would change its graphs")
            return original(*args, **kwargs)

        return compile


def hide_from_dynamo() -> None:
    """Tell dynamo to run our code as it is, outside its graphs; once is enough."""
    from torch._dynamo import trace_rules

    file = Path(__file__)  # dynamo compares the path under which we were imported, which may be a link
    for directory in (str(file.parents[1]) + "/", str(file.resolve().parents[1]) + "/"):
        if directory not in trace_rules.SKIP_DIRS:
            trace_rules.SKIP_DIRS.append(directory)
            trace_rules._recompile_re()
