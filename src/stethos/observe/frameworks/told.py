"""A function of a framework whose calls tell something, and who wraps it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Literal, NamedTuple

from stethos.observe.session import Session
from stethos.observe.spans import Span

Facts = Mapping[str, Any]


class Told(NamedTuple):
    """A method, or a function where `owner` is "". During its call, or from its begin to another's end, something goes
    on that becomes a span named `what`; `facts` of its arguments become the span's fields.

    A call that `sets` tells hyperparameters instead: its facts, after the call.
    """

    module: str
    owner: str
    name: str
    when: Literal["during", "begins", "ends", "sets"]
    what: str
    facts: Callable[..., Facts] = lambda *_, **__: {}


class FrameworkWatch:
    """Wraps the functions that frameworks tell something by, for one session, and gives them back."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._open: dict[str, tuple[Span, int]] = {}  # by name, with the steps made before
        self._undo: list[Callable[[], None]] = []
        self._is_active = True

    def install(
        self, after_import: Callable[[str, Callable[[ModuleType], None]], None], told: tuple[Told, ...]
    ) -> None:
        """Wrap what is imported already, and the rest when it is."""
        self.session.on_close.append(self.uninstall)
        self.session.on_fork.append(self._open.clear)
        for one in told:
            loaded = sys.modules.get(one.module)
            if loaded is not None and not getattr(loaded.__spec__, "_initializing", False):
                self._wrap(one, loaded)
            else:
                after_import(one.module, functools.partial(self._wrap, one))

    def uninstall(self) -> None:
        self._is_active = False
        while self._undo:
            self._undo.pop()()

    def _wrap(self, told: Told, module: ModuleType) -> None:
        owner = getattr(module, told.owner, None) if told.owner else module
        original = vars(owner).get(told.name) if owner is not None else None
        if owner is None or not callable(original):
            return
        run = self.session.guard.run

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            is_mine = self._is_active and run("frameworks", self._before, told, args, kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                if is_mine:
                    run("frameworks", self._after, told, args, kwargs, sys.exc_info())

        def restore() -> None:
            if vars(owner).get(told.name) is wrapper:
                setattr(owner, told.name, original)

        setattr(owner, told.name, wrapper)
        self._undo.append(restore)

    def _before(self, told: Told, args: Any, kwargs: Any) -> bool:
        """Whether there is something to do after the call."""
        if told.when in ("during", "begins"):
            if told.what in self._open and told.when == "during":
                return False  # one of these is going on: of those that call each other the outermost counts
            self.session.has_told_epochs |= told.what == "epoch"
            span = Span(lambda: self.session, told.what, dict(told.facts(*args, **kwargs)))
            span.__enter__()
            self._open[told.what] = span, self.session.steps
        return told.when != "begins"

    def _after(self, told: Told, args: Any, kwargs: Any, error: Any) -> None:
        if told.when == "sets":
            self.session.note_config("framework", told.facts(*args, **kwargs))
            return
        span, steps = self._open.pop(told.what, (None, 0))
        if span is not None:
            span.fields["steps"] = self.session.steps - steps
            span.__exit__(*error)
