"""Running something in the training thread, between its gradients and its optimizer.

A task is left for the optimizer's pre hook, which looks at one attribute
(`StepRecorder.next_step_call`) in every step. If no step comes, the task is taken back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from stethos.observe.step_recorder import StepRecorder

_LOOK_S = 0.1


@dataclass(eq=False, slots=True)
class StepTask:
    """Something to do at the next step, once; `action` gets the optimizer and must not raise.

    With `at_step` not before that step, by the count of `steps`: so that several ranks do it at the same one.
    """

    action: Callable[[Any], None]
    at_step: int = 0
    steps: Callable[[], int] = lambda: 0
    begun: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


class Boundary:
    """Tasks that wait for a step of this process."""

    def __init__(self) -> None:
        self._tasks: deque[StepTask] = deque()
        self._lock = threading.Lock()

    def leave(self, watch: StepRecorder, task: StepTask, wait_s: float, is_given_up: Callable[[], bool]) -> bool:
        """Leave a task for the next step; True once it has begun, False if it was taken back after `wait_s`."""
        with self._lock:
            self._tasks.append(task)
            watch.next_step_call = lambda optimizer: self._run(watch, optimizer)
        deadline = time.monotonic() + wait_s
        while not task.begun.wait(min(_LOOK_S, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline or is_given_up():
                with self._lock:
                    if task in self._tasks:
                        self._tasks.remove(task)
                        return False
        return True

    def leave_next(self, watch: StepRecorder, task: StepTask) -> None:
        """Leave a task for the next step without waiting for it; also from within a task."""
        with self._lock:
            self._tasks.append(task)
            watch.next_step_call = lambda optimizer: self._run(watch, optimizer)

    def _run(self, watch: StepRecorder, optimizer: torch.optim.Optimizer) -> None:
        """On the training thread: everything that has been left up to now, for this step."""
        with self._lock:
            tasks = [task for task in self._tasks if task.at_step <= task.steps()]
            for task in tasks:
                self._tasks.remove(task)
            if not self._tasks:
                watch.next_step_call = None
            for task in tasks:
                task.begun.set()
        try:
            for task in tasks:
                task.action(optimizer)
                task.done.set()
        finally:  # after a Ctrl-C nobody is to wait for what will not happen
            for task in tasks:
                task.done.set()
