"""Running something in the training thread, between its gradients and its optimizer.

A task is left for the optimizer's pre hook, which looks at one attribute
(`StepWatch.errand`) in every step. If no step comes, the task is taken back.
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

    from stethos.observe.stepwatch import StepWatch

_LOOK_S = 0.1


@dataclass(eq=False, slots=True)
class Task:
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
        self._tasks: deque[Task] = deque()
        self._lock = threading.Lock()

    def leave(self, watch: StepWatch, task: Task, wait_s: float, is_given_up: Callable[[], bool]) -> bool:
        """Leave a task for the next step; True once it has begun, False if it was taken back after `wait_s`."""
        with self._lock:
            self._tasks.append(task)
            watch.errand = lambda optimizer: self._run(watch, optimizer)
        deadline = time.monotonic() + wait_s
        while not task.begun.wait(min(_LOOK_S, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline or is_given_up():
                with self._lock:
                    if task in self._tasks:
                        self._tasks.remove(task)
                        return False
        return True

    def leave_next(self, watch: StepWatch, task: Task) -> None:
        """Leave a task for the next step without waiting for it; also from within a task."""
        with self._lock:
            self._tasks.append(task)
            watch.errand = lambda optimizer: self._run(watch, optimizer)

    def _run(self, watch: StepWatch, optimizer: torch.optim.Optimizer) -> None:
        """On the training thread: everything that has been left up to now, for this step."""
        with self._lock:
            tasks = [task for task in self._tasks if task.at_step <= task.steps()]
            for task in tasks:
                self._tasks.remove(task)
            if not self._tasks:
                watch.errand = None
            for task in tasks:
                task.begun.set()
        try:
            for task in tasks:
                task.action(optimizer)
                task.done.set()
        finally:  # after a Ctrl-C nobody is to wait for what will not happen
            for task in tasks:
                task.done.set()
