"""torch's profiler for a few steps of a live training: the largest operators, and a trace of bounded size.

The profiler is switched on at one step and off some steps later, both in the
training's own thread; the tables and the trace are made beside it, in the
agent's. It reads clocks and counters: the training's results stay what they are.
"""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.errors import LiveError, UsageError
from stethos.guard import outcome_of
from stethos.live.boundary import StepTask
from stethos.live.kernel_class import CLASSES, KernelClass, class_of
from stethos.live.request import Request

if TYPE_CHECKING:
    import torch

MOST_STEPS = 100
DEFAULT_LIMIT_BYTES = 64 << 20
_WAIT_S = 5.0
_LONGEST_S = 600.0
_TOP = 30


class ProfilerTrace:
    """One profile in the making; its methods run on the training thread, at step boundaries."""

    def __init__(self, request: Request, steps: int) -> None:
        self._request = request
        self._left = steps
        self._thread = 0
        self._optimizer = 0
        self.profiler: Any = None
        self.began_ns = self.ended_ns = 0
        self.first_step = 0
        self.error: BaseException | None = None
        self.done = threading.Event()

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Switch the profiler on; from here on each step of this optimizer and thread counts."""
        self.error = outcome_of(self._begin, optimizer)
        if self.error is not None:
            self.done.set()

    def _begin(self, optimizer: torch.optim.Optimizer) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        if torch._C._autograd._profiler_enabled():
            raise LiveError("a profiler is running in this process already", hint="end it, or wait for its end")
        has_gpu: Any = torch.cuda.is_initialized
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_gpu() else [])]
        self._thread, self._optimizer = threading.get_ident(), id(optimizer)
        self.first_step = self._request.session.steps
        self.profiler = profile(activities=activities, profile_memory=True)
        self.profiler.start()
        self.began_ns = time.monotonic_ns()
        self._go_on()

    def _go_on(self) -> None:
        watch = self._request.recording.torch_hooks
        if watch is not None:
            self._request.boundary.leave_next(watch.steps, StepTask(self.step))

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """A step of some optimizer begins."""
        if threading.get_ident() == self._thread and id(optimizer) == self._optimizer:
            self._left -= 1
        if self._left and not self.done.is_set():
            self._go_on()
        else:
            self.end()

    def end(self) -> None:
        """Switch the profiler off, once."""
        if not self.done.is_set() and self.profiler is not None:
            self.ended_ns = time.monotonic_ns()
            self.error = outcome_of(self.profiler.stop)
            self.done.set()


def trace_steps(request: Request) -> dict[str, Any]:
    """`profile`: run torch's profiler for `steps` steps; the largest operators, and a trace at `path` if there is one.

    The path ends in `.json.gz`. A trace larger than `limit_bytes` keeps its longest events.
    """
    steps = request.content.get("steps", 3)
    limit = request.content.get("limit_bytes", DEFAULT_LIMIT_BYTES)
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MOST_STEPS:
        raise UsageError(f"profile: steps is a number from 1 to {MOST_STEPS}, not {steps!r}")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1 << 10:
        raise UsageError(f"profile: limit_bytes is a number of bytes, 1024 or more, not {limit!r}")
    path = _checked_path(request)
    watch = request.recording.torch_hooks
    if watch is None or not watch.steps.is_active:
        raise LiveError("no optimizer step can be seen in this process", hint="torch is not imported, or not watched")
    trace = ProfilerTrace(request, steps)
    wait_s = request.seconds("wait_s", _WAIT_S)
    if not request.boundary.leave(watch.steps, StepTask(trace.begin), wait_s, request.has_hung_up):
        raise LiveError(f"no optimizer step came within {wait_s:g} s: nothing was traced",
                        hint="`stethos backtrace` shows where the training is")  # fmt: skip
    trace.done.wait(_LONGEST_S)
    trace.end()  # no step came any more
    if isinstance(trace.error, LiveError):
        raise trace.error
    if trace.error is not None:
        raise LiveError(f"the profiler failed: {type(trace.error).__name__}: {trace.error}")
    return {
        "steps": steps, "first_step": trace.first_step,
        "duration_ms": (trace.ended_ns - trace.began_ns) * 1e-6, **tables_of(trace.profiler),
        **(saved_trace(trace.profiler, path, limit) if path is not None else {}),
    }  # fmt: skip


def _checked_path(request: Request) -> Path | None:
    text = request.text("path")
    path = Path(text) if text else None
    if path is not None:
        if not path.is_absolute() or not path.name.endswith(".json.gz"):
            raise UsageError("the path of a trace is absolute and ends in .json.gz")
        if not path.parent.is_dir():
            raise UsageError(f"no directory {path.parent}", hint="make it first")
        if path.exists() and not request.content.get("force"):
            raise UsageError(f"{path} exists", hint="choose another name, or overwrite it with --force")
    return path


def tables_of(profiler: Any) -> dict[str, Any]:
    """The operators that took the most time, those that allocated the most memory, and the time by class."""
    averages = profiler.key_averages()
    rows = [
        {
            "op": one.key, "calls": one.count, "self_ms": one.self_cpu_time_total * 1e-3,
            "total_ms": one.cpu_time_total * 1e-3, "device_ms": getattr(one, "self_device_time_total", 0.0) * 1e-3,
            "allocated_bytes": one.self_cpu_memory_usage + getattr(one, "self_device_memory_usage", 0),
        }
        for one in averages
    ]  # fmt: skip
    by_time = sorted(rows, key=lambda row: -max(row["self_ms"], row["device_ms"]))
    by_memory = sorted((row for row in rows if row["allocated_bytes"] > 0), key=lambda row: -row["allocated_bytes"])
    return {"operators": len(rows), "by_time": by_time[:_TOP], "by_memory": by_memory[:_TOP], **_class_times(averages)}


def _class_times(averages: Any) -> dict[str, Any]:
    """The time of all kernels by class, or that of all operators where no GPU is used."""
    from torch._C._autograd import DeviceType

    kernels = [one for one in averages if one.device_type == DeviceType.CUDA and not one.is_user_annotation]
    class_ms: dict[KernelClass, float] = dict.fromkeys(CLASSES, 0.0)
    for one in kernels or averages:
        class_ms[class_of(one.key)] += (one.self_device_time_total if kernels else one.self_cpu_time_total) * 1e-3
    return {"is_gpu": bool(kernels), "class_ms": {found: ms for found, ms in class_ms.items() if ms > 0}}


def saved_trace(profiler: Any, path: Path, limit_bytes: int) -> dict[str, Any]:
    """Write the trace, beside its place first; one that is too large is cut to its longest events."""
    plain = path.with_name(f".{path.name}.{os.getpid()}.json")
    try:
        profiler.export_chrome_trace(str(plain))
        trace = json.loads(plain.read_bytes())
        events = trace["traceEvents"]
        kept = events
        packed = _packed(trace)
        while len(packed) > limit_bytes and kept:
            share = 0.9 * limit_bytes / len(packed)
            kept = _longest(kept, int(len(kept) * share))
            packed = _packed({**trace, "traceEvents": kept, "stethosEventsLeftOut": len(events) - len(kept)})
        plain.write_bytes(packed)
        os.chmod(plain, 0o600)
        os.replace(plain, path)
    except OSError as error:
        raise LiveError(f"cannot write {path}: {error.strerror or error}", hint="choose another place") from None
    finally:
        plain.unlink(missing_ok=True)
    return {"path": str(path), "bytes": len(packed), "events": len(kept), "events_left_out": len(events) - len(kept)}


def _packed(trace: dict[str, Any]) -> bytes:
    return gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), 5)


def _longest(events: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The events without a duration that name things, and the longest of the others, in their order."""
    names = [event for event in events if event.get("ph") == "M"]
    others = sorted((event for event in events if event.get("ph") == "X"), key=lambda event: -event.get("dur", 0))
    chosen = others[: max(count - len(names), 0)]
    return [*names, *sorted(chosen, key=lambda event: event.get("ts", 0))]
