"""Small acts on a training, each undoable or harmless: learning rate, gradient clipping, garbage collection.

They happen at a step boundary, when the gradients are ready and the optimizer has not acted yet.
"""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stethos.errors import LiveError, UsageError
from stethos.guard import outcome_of
from stethos.live.boundary import StepTask
from stethos.live.request import Request

if TYPE_CHECKING:
    import torch

WAIT_S = 5.0
_MOST_UNDO = 100


@dataclass(frozen=True, slots=True)
class GroupReference:
    """A parameter group, which cannot be referred to weakly itself."""

    optimizer: weakref.ref[Any]
    index: int

    def group(self) -> dict[str, Any] | None:
        optimizer = self.optimizer()
        groups = optimizer.param_groups if optimizer is not None else []
        return groups[self.index] if self.index < len(groups) else None


@dataclass(eq=False)
class Steering:
    """What was changed and can be taken back."""

    rates: list[list[tuple[GroupReference, float]]] = field(default_factory=list)
    clips: list[Any] = field(default_factory=list)
    clip: float | None = None

    def release(self) -> None:
        """Clip no more."""
        self.clip = None
        while self.clips:
            self.clips.pop().remove()


def at_step(request: Request, action: Callable[[Any], dict[str, Any]], wait_s: float = WAIT_S) -> dict[str, Any]:
    """What `action` returns at the next step; LiveError if it failed or no step came.

    With `at_step` in the request at that step or not at all, so that all ranks do it at the same one.
    """
    watch = request.recording.torch_hooks
    if watch is None or not watch.steps.is_active:
        raise LiveError("no optimizer step can be seen in this process", hint="torch is not imported, or not watched")
    outcome: list[Any] = []
    steps: list[int] = []  # read on the training thread: it goes on while this one wakes up
    wanted = request.at_step

    def act(optimizer: Any) -> None:
        steps.append(request.session.steps)
        is_late = 0 < wanted < steps[0]
        outcome.append(request.too_late() if is_late else outcome_of(action, optimizer))

    task = StepTask(act, at_step=wanted, steps=lambda: request.session.steps)
    wait_s = request.seconds("wait_s", wait_s)
    if not request.boundary.leave(watch.steps, task, wait_s, request.has_hung_up):
        which = f"step {wanted} did not come" if wanted else "no optimizer step came"
        raise LiveError(
            f"{which} within {wait_s:g} s: nothing was changed",
            hint="`stethos backtrace` shows where the training is",
        )
    task.done.wait()
    result = outcome[0] if outcome else LiveError("interrupted")
    if isinstance(result, LiveError | UsageError):
        raise result
    if isinstance(result, BaseException):
        raise LiveError(f"it failed: {type(result).__name__}: {result}")
    return {"step": steps[0], **result}


# Learning rate ---------------------------------------------------------------------------------------------


def change_rate(request: Request) -> dict[str, Any]:
    """`lr`: `change` is empty (only show), `x0.1`, `0.01` or `undo`."""
    change = request.text("change").strip()
    if not change:
        return {"groups": _groups(request), "changed": False}
    if change != "undo":
        _new_rate(change, 1.0)  # is it a change at all?
    return at_step(request, lambda optimizer: _change_rate(request, change))


def _change_rate(request: Request, change: str) -> dict[str, Any]:
    history = request.steering.rates
    if change == "undo":
        if not history:
            raise LiveError("no learning rate was changed from here", hint="`stethos lr` shows the present ones")
        were = _groups(request)
        for reference, rate in history.pop():
            group = reference.group()
            if group is not None:
                _set_rate(group, rate)
        return {"groups": _groups(request, were), "changed": True}
    were = _groups(request)
    before = []
    for watched in request.watched():
        optimizer = watched.optimizer()
        for index, group in enumerate(optimizer.param_groups if optimizer is not None else ()):
            rate = float(group["lr"])
            before.append((GroupReference(weakref.ref(optimizer), index), rate))
            _set_rate(group, _new_rate(change, rate))
    history.append(before)
    del history[:-_MOST_UNDO]
    return {"groups": _groups(request, were), "changed": True}


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if hasattr(group["lr"], "fill_"):  # a tensor, which compiled optimizers hold on to
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _new_rate(change: str, rate: float) -> float:
    try:
        value = rate * float(change[1:]) if change[0] in "x*" else float(change)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"not a learning rate: {change!r}", hint="write x0.1 to multiply, 0.01 to set, or undo")
    return value


def _groups(request: Request, were: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Every parameter group with its rate, and the one it had in `were`."""
    rates = {(group["optimizer"], group["group"]): group["lr"] for group in were}
    found = []
    for watched in request.watched():
        optimizer = watched.optimizer()
        for index, group in enumerate(optimizer.param_groups if optimizer is not None else ()):
            found.append(
                {
                    "optimizer": watched.number,
                    "class": type(optimizer).__name__,
                    "group": index,
                    "lr": float(group["lr"]),
                    "was": rates.get((watched.number, index), float(group["lr"])),
                    "weight_decay": float(group.get("weight_decay") or 0.0),
                    "has_scheduler": "initial_lr" in group,
                }
            )
    return found


# Clipping ---------------------------------------------------------------------------------------------------


def change_clip(request: Request) -> dict[str, Any]:
    """`clip`: from this step on clip the gradients' norm to `norm`; None takes it off; no `norm`: only show."""
    if "norm" not in request.content:
        return {"clip": request.steering.clip}
    norm = request.content["norm"]
    if norm is not None and not (isinstance(norm, int | float) and math.isfinite(norm) and norm > 0):
        raise UsageError(f"not a norm to clip to: {norm!r}", hint="say `stethos clip 1.0` or `stethos clip off`")
    return at_step(request, lambda optimizer: _change_clip(request, norm))


def _change_clip(request: Request, norm: float | None) -> dict[str, Any]:
    steering = request.steering
    before = steering.clip
    steering.release()
    if norm is not None:
        steering.clip = norm
        for watched in request.watched():
            optimizer = watched.optimizer()
            if optimizer is not None:  # its own hooks come after ours, so this very step is clipped already
                steering.clips.append(optimizer.register_step_pre_hook(_clipper(float(norm))))
    return {"clip": norm, "before": before, "optimizers": len(steering.clips)}


def _clipper(norm: float) -> Callable[..., None]:
    def clip(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        torch_module = sys.modules["torch"]
        parameters = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        outcome_of(torch_module.nn.utils.clip_grad_norm_, parameters, norm)

    return clip


# Memory -----------------------------------------------------------------------------------------------------


def collect_garbage(request: Request) -> dict[str, Any]:
    """`gc`: collect garbage and give cached device memory back."""

    def collect(optimizer: Any) -> dict[str, Any]:
        before = _resident_bytes()
        found = gc.collect()
        torch_module = sys.modules.get("torch")
        has_cuda = torch_module is not None and torch_module.cuda.is_available() and torch_module.cuda.is_initialized()
        cached = torch_module.cuda.memory_reserved() if has_cuda and torch_module is not None else 0
        if has_cuda and torch_module is not None:
            torch_module.cuda.empty_cache()
            cached -= torch_module.cuda.memory_reserved()
        return {"collected": found, "rss_before": before, "rss_after": _resident_bytes(), "cuda_freed": cached}

    return at_step(request, collect)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="utf-8") as file:
            return int(file.read().split()[1]) * 4096
    except OSError:
        return 0
