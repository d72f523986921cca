"""Marks the training script that uses NVFlare's Client API: in its own thread of the client, or its own process.

A script is in its turn from `flare.receive()` to `flare.send()`. In a
client's process the turn is that of the widget. In a process of its own,
which joins the run through its environment, the invitation comes with the
task; the process writes what it saw of the turn itself.
"""

from __future__ import annotations

import functools
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from types import TracebackType
from typing import Any, NamedTuple

from stethos.adapters.nvflare.exchange import HEADER, guarded
from stethos.federate.invitation import Invitation
from stethos.federate.site import Site
from stethos.federate.thread_patch import THREAD_PATCH
from stethos.guard import text_of
from stethos.observe import boot
from stethos.observe.context import TurnTotals

_Method = Callable[..., Any]


class ScriptTurn(NamedTuple):
    """A client's turn, as far as its training script is concerned."""

    invitation: Invitation
    tally: TurnTotals | None
    site: Site


class Patches:
    """Methods of NVFlare's classes that are ours for a while."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: type, name: str, around: Callable[[_Method], _Method]) -> None:
        original = owner.__dict__[name]
        is_static = isinstance(original, staticmethod)
        wrapped = around(original.__func__ if is_static else original)
        setattr(owner, name, staticmethod(wrapped) if is_static else wrapped)
        self._undo.append(lambda: setattr(owner, name, original))

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


class _Marked(threading.local):
    """The turn that this thread is marked with."""

    turn: ScriptTurn | None = None
    stack: ExitStack | None = None
    has_failed: bool = False


class Scripts:
    """Training scripts in threads of this process; `turns` are their clients' by name."""

    def __init__(self) -> None:
        self.turns: dict[str, ScriptTurn] = {}
        self._failures: dict[str, tuple[str, str]] = {}
        self._marked = _Marked()
        self._patches = Patches()
        self._users = 0
        self._lock = threading.Lock()

    def install(self) -> None:
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            api = import_module("nvflare.client.in_process.api").InProcessClientAPI
            runner = import_module("nvflare.app_common.executors.task_script_runner").TaskScriptRunner
            self._patches.wrap(api, "receive", functools.partial(_around_receive, self.enter))
            self._patches.wrap(api, "send", functools.partial(_around_send, self.leave))
            self._patches.wrap(runner, "run", self._around_run)

    def remove(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._patches.undo()

    def failure_of(self, client: str) -> tuple[str, str] | None:
        """The error and traceback that ended a client's script, if it did; "" stands for one not yet known."""
        return self._failures.get(client) or self._failures.get("")

    # On the script's thread ------------------------------------------------------------------------

    def enter(self, api: Any, model: Any) -> None:
        """The script has received a model."""
        turn = self.turns.get(str(api.get_site_name()))
        if model is None or turn is None or turn is self._marked.turn:
            return
        self.leave()
        stack = ExitStack()
        stack.enter_context(turn.invitation.marked(turn.tally))
        stack.enter_context(turn.site.phase("compute"))
        self._marked.turn, self._marked.stack = turn, stack

    def leave(self, error: BaseException | None = None) -> None:
        """The script is about to send its result, or has failed."""
        stack, self._marked.turn, self._marked.stack = self._marked.stack, None, None
        if stack is not None:
            stack.__exit__(*(type(error), error, error.__traceback__) if error is not None else (None, None, None))

    def _around_run(self, run: _Method) -> _Method:
        @functools.wraps(run)
        def watched_run(runner: Any) -> Any:
            fire = runner.event_manager.fire_event

            def watched_fire(*args: Any, **kwargs: Any) -> Any:
                guarded(self._note_failure, sys.exc_info()[1])  # before anybody is told to abort
                return fire(*args, **kwargs)

            runner.event_manager.fire_event = watched_fire
            try:
                return run(runner)
            except BaseException as error:
                guarded(self._note_failure, error)
                raise
            finally:
                guarded(self.leave)

        return watched_run

    def _note_failure(self, error: BaseException | None) -> None:
        if error is None or self._marked.has_failed:
            return
        self._marked.has_failed = True
        turn = self._marked.turn
        client = turn.invitation.client if turn is not None else ""
        if self._failures.get(client) is None:
            text = "".join(traceback.format_exception(error, limit=-40))
            self._failures[client] = (f"{type(error).__name__}: {text_of(error)}"[:2000], text[-16_000:])
        if turn is not None:
            turn.site.failed(error)
            self.leave(error)


SCRIPTS = Scripts()


class OwnProcess:
    """A training script in a process of its own."""

    def __init__(self) -> None:
        self._invitation: Invitation | None = None
        self._site: Site | None = None
        self._patches = Patches()

    def install(self, module: Any) -> None:
        """Called when the process has imported `nvflare.client.cell.api`."""
        models = import_module("nvflare.app_common.utils.fl_model_utils").FLModelUtils
        self._patches.wrap(models, "from_shareable", self._around_from_shareable)
        self._patches.wrap(module.CellClientAPI, "receive", functools.partial(_around_receive, self.enter))
        self._patches.wrap(module.CellClientAPI, "send", functools.partial(_around_send, self.leave))
        THREAD_PATCH.install()
        excepthook = sys.excepthook

        def watched_excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            guarded(self.leave, error, trace)  # not at exit: NVFlare's threads may keep the process until it is killed
            excepthook(kind, error, trace)

        sys.excepthook = watched_excepthook

    def _around_from_shareable(self, from_shareable: _Method) -> _Method:
        @functools.wraps(from_shareable)
        def watched(shareable: Any, *args: Any, **kwargs: Any) -> Any:
            guarded(self._task_came, shareable)
            return from_shareable(shareable, *args, **kwargs)

        return watched

    def _task_came(self, shareable: Any) -> None:
        fields = shareable.get_header(HEADER)
        if fields:
            self._invitation = Invitation.from_fields(fields)

    def enter(self, api: Any, model: Any) -> None:
        if model is None or self._invitation is None or self._site is not None:
            return
        self._site, self._invitation = Site(self._invitation, side="client", on_end=_write_work), None
        self._site.__enter__()

    def leave(self, error: BaseException | None = None, trace: TracebackType | None = None) -> None:
        site, self._site = self._site, None
        if site is not None:
            site.__exit__(type(error) if error is not None else None, error, trace)


def _write_work(site: Site) -> None:
    """Record the part of a turn that its training script knows; how long it took on the whole, the client knows."""
    site.note(compute_ms=site.facts.pop("duration_ms", None))
    session = boot.current_session()
    if session is not None:
        site.write(session)


OWN_PROCESS = OwnProcess()


def watch_module(module: Any) -> None:
    """What a process that belongs to a run does when it imports NVFlare's Client API for own processes."""
    guarded(OWN_PROCESS.install, module)


def _around_receive(enter: Callable[[Any, Any], None], receive: _Method) -> _Method:
    @functools.wraps(receive)
    def watched_receive(api: Any, *args: Any, **kwargs: Any) -> Any:
        model = receive(api, *args, **kwargs)
        guarded(enter, api, model)
        return model

    return watched_receive


def _around_send(leave: Callable[[], None], send: _Method) -> _Method:
    @functools.wraps(send)
    def watched_send(*args: Any, **kwargs: Any) -> Any:
        guarded(leave)
        return send(*args, **kwargs)

    return watched_send
