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
    children = session.guard.run("traceback", _children_of, error) or ()
    session.guard.run("memory", _explain_memory, session, error, trace)
    session.note_failure(f"{type(error).__name__}: {text_of(error)}", text, children)


def _explain_memory(session: Session, error: BaseException, trace: TracebackType | None) -> None:
    """Where memory ran out: what filled it. Torch is imported, or there would be nothing to tell."""
    if "torch" in sys.modules and not isinstance(error, SystemExit | KeyboardInterrupt):
        from stethos.observe.inspection_row import put_inspection
        from stethos.observe.out_of_memory import is_out_of_memory, memory_facts

        if is_out_of_memory(error):
            put_inspection(session, {"phase": "out of memory", "detail": memory_facts(error, trace)}, [])


def _children_of(error: BaseException) -> list[dict[str, int]]:
    """The workers whose failure a launcher raises, with their exit statuses: torchrun and `torch.multiprocessing`."""
    failures = getattr(error, "failures", None)
    first = getattr(error, "get_first_failure", None)
    if isinstance(failures, dict) and first is not None:
        leading = first()[1]
        ordered = [leading, *(one for one in failures.values() if one is not leading)]
        return [{"pid": int(one.pid), "exit_code": int(one.exitcode)} for one in ordered]
    pid, code = getattr(error, "error_pid", None), getattr(error, "exit_code", None)
    return [{"pid": pid, "exit_code": code}] if isinstance(pid, int) and isinstance(code, int) else []


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
