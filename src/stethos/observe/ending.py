"""Records the uncaught exception that ends a process or a recording; `sys.excepthook` goes on as before."""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from stethos.guard import text_of
from stethos.observe.session import Session


class EndWatch:
    """Sees the uncaught exception of the program, whoever else sets `sys.excepthook`; the program still gets it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._original = sys.excepthook
        self._known = _last_error()
        self._is_active = False

    def install(self) -> None:
        if not self._is_active:
            self._is_active = True
            self._original, self._known = sys.excepthook, _last_error()
            sys.excepthook = self._hook
            self._session.on_close.append(self.uninstall)

    def uninstall(self) -> None:
        was_active, self._is_active = self._is_active, False
        if sys.excepthook == self._hook:
            sys.excepthook = self._original
        if was_active:
            self._session.guard.run("traceback", self._record_last)

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._is_active:
            self._session.guard.run("traceback", self._record, error, trace)
        self._original(kind, error, trace)

    def _record(self, error: BaseException, trace: TracebackType | None) -> None:
        self._known = error
        if not _is_interactive():
            record_failure(self._session, error, trace)

    def _record_last(self) -> None:
        """A hook that the program put in our place need not have called us; the interpreter keeps what it was given.

        Notebooks and shells keep there what a cell has raised, and go on: such an error was caught on its way out.
        """
        error = _last_error()
        if error is not None and error is not self._known and not (_was_caught(error) or _is_interactive()):
            record_failure(self._session, error, error.__traceback__)


def record_failure(session: Session, error: BaseException, trace: TracebackType | None) -> None:
    """The exception of which a recording ends, with its traceback."""
    text = "".join(traceback.format_exception(type(error), error, trace, limit=-50))
    session.note_failure(f"{type(error).__name__}: {text_of(error)}", text)


def _is_interactive() -> bool:
    """Whether a person types what is run: an exception ends one statement or cell, and the process goes on."""
    return hasattr(sys, "ps1")


def _was_caught(error: BaseException) -> bool:
    """Whether it did not get out of the outermost frame: a traceback begins where its exception was caught."""
    trace = error.__traceback__
    return trace is not None and trace.tb_frame.f_back is not None


def _last_error() -> BaseException | None:
    """The uncaught exception that the interpreter has shown last; none before the first."""
    return getattr(sys, "last_value", None)
