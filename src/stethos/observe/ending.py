"""Records the uncaught exception that ends a process or a recording; `sys.excepthook` goes on as before."""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from stethos.guard import text_of
from stethos.observe.session import Session


class EndWatch:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._original = sys.excepthook
        self._is_active = False

    def install(self) -> None:
        if not self._is_active:
            self._is_active = True
            self._original = sys.excepthook
            sys.excepthook = self._hook
            self._session.on_close.append(self.uninstall)

    def uninstall(self) -> None:
        self._is_active = False
        if sys.excepthook == self._hook:
            sys.excepthook = self._original

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._is_active:
            self._session.guard.run("traceback", record_failure, self._session, error, trace)
        self._original(kind, error, trace)


def record_failure(session: Session, error: BaseException, trace: TracebackType | None) -> None:
    """The exception of which a recording ends, with its traceback."""
    text = "".join(traceback.format_exception(type(error), error, trace, limit=-50))
    session.note_failure(f"{type(error).__name__}: {text_of(error)}", text)
