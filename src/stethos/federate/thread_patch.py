"""Carries whose turn it is into threads and worker processes that a client's code starts.

Context variables do not follow into a new thread. While a federation is
open, threads started and work submitted inside a client's turn are marked as
its own. Only our two variables are set there: the program's own context
variables behave as ever.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread as pool_thread
import threading
from collections.abc import Callable
from typing import Any

from stethos.federate.invitation import Invitation, current_invitation
from stethos.federate.site import Site
from stethos.observe.context import TURN
from stethos.observe.spans import OPEN

_Submit = Callable[..., concurrent.futures.Future[Any]]


def call_marked(turn: Any, span: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function as part of a turn; for threads of the same process."""
    tokens = TURN.set(turn), OPEN.set(span)
    try:
        return function(*args, **kwargs)
    finally:
        TURN.reset(tokens[0])
        OPEN.reset(tokens[1])


def call_invited(fields: dict[str, str], function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function as part of a turn; in a worker process."""
    with Site(Invitation.from_fields(fields), side="client").part():
        return function(*args, **kwargs)


class ThreadPatch:
    """The three places where work leaves a thread, wrapped while at least one federation is open."""

    def __init__(self) -> None:
        self._users = 0
        self._lock = threading.Lock()
        self._originals: tuple[Callable[..., None], _Submit, _Submit] | None = None

    def install(self) -> None:
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            start = threading.Thread.start
            threads, processes = concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor
            self._originals = (start, threads.submit, processes.submit)
            threading.Thread.start = _marked_start(start)  # type: ignore[method-assign]
            threads.submit = _marked_submit(threads.submit)  # type: ignore[method-assign]
            processes.submit = _invited_submit(processes.submit)  # type: ignore[method-assign]

    def remove(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._originals is None:
                return
            start, thread_submit, process_submit = self._originals
            threading.Thread.start = start  # type: ignore[method-assign]
            concurrent.futures.ThreadPoolExecutor.submit = thread_submit  # type: ignore[method-assign]
            concurrent.futures.ProcessPoolExecutor.submit = process_submit  # type: ignore[method-assign]
            self._originals = None


def _marked_start(start: Callable[..., None]) -> Callable[..., None]:
    def marked_start(self: threading.Thread) -> None:
        turn = TURN.get()
        target = getattr(self, "_target", None)
        if turn[2] is not None and target is not pool_thread._worker:  # a pool's threads outlive the turn  # type: ignore[attr-defined]
            run, span = self.run, OPEN.get()

            def marked_run() -> None:
                self.__dict__.pop("run", None)
                call_marked(turn, span, run)

            self.run = marked_run  # type: ignore[method-assign]
        start(self)

    return marked_start


def _marked_submit(submit: _Submit) -> _Submit:
    def marked_submit(
        self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        turn = TURN.get()
        if turn[2] is None:
            return submit(self, function, *args, **kwargs)
        return submit(self, call_marked, turn, OPEN.get(), function, *args, **kwargs)

    return marked_submit


def _invited_submit(submit: _Submit) -> _Submit:
    def invited_submit(
        self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        invitation = current_invitation()
        if invitation is None:
            return submit(self, function, *args, **kwargs)
        return submit(self, call_invited, invitation.to_fields(), function, *args, **kwargs)

    return invited_submit


THREAD_PATCH = ThreadPatch()
