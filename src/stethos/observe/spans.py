"""Timed pieces of work: `with stethos.span("load", shard=3):`, the same as a decorator, and epochs of a data loader."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import re
import struct
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from stethos.clock import monotonic_ns
from stethos.guard import text_of
from stethos.observe.hyperparameters import note_loader
from stethos.observe.session import Session
from stethos.schema import SPANS

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS = struct.Struct("<dd")
_LONGEST = 4000  # characters of a field
_BEGIN = "_stethos_begin"  # of a pass over the data, at its iterator
_Ids = tuple[str, str]  # trace, span
# The open span of this thread or task.
OPEN: ContextVar[_Ids | None] = ContextVar("stethos_span", default=None)
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def traceparent() -> str:
    """The open span as W3C trace context, to be carried to other processes; "" without one."""
    ids = OPEN.get()
    return f"00-{ids[0]}-{ids[1]}-01" if ids else ""


def ids_in(header: str) -> _Ids | None:
    """The trace and span that a W3C `traceparent` names; None if it is none."""
    found = _TRACEPARENT.fullmatch(header)
    return (found[1], found[2]) if found else None


class Span:
    """One piece of work. An exception is recorded and passes on. Reusable as a decorator, also of coroutines.

    `is_root` begins a trace of its own.
    """

    def __init__(
        self, session: Callable[[], Session | None], name: str, fields: dict[str, Any], *, is_root: bool = False,
    ) -> None:  # fmt: skip
        self._session = session
        self.name = name
        self.fields = fields
        self._is_root = is_root
        self._entered: list[tuple[Token[_Ids | None], _Ids, _Ids | None, int]] = []

    def __enter__(self) -> Span:
        parent = None if self._is_root else OPEN.get()
        ids = (parent[0] if parent else os.urandom(16).hex(), os.urandom(8).hex())
        self._entered.append((OPEN.set(ids), ids, parent, monotonic_ns()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end_ns = monotonic_ns()
        token, ids, parent, start_ns = self._entered.pop()
        with contextlib.suppress(ValueError):  # left in another context than entered, as async generators may be
            OPEN.reset(token)
        session = self._session()
        if session is not None:
            session.guard.run("spans", self._record, session, ids, parent, start_ns, end_ns, error)

    def _record(
        self, session: Session, ids: _Ids, parent: _Ids | None, start_ns: int, end_ns: int, error: BaseException | None
    ) -> None:
        session.put_frame(
            SPANS.number,
            session.name_id(self.name).to_bytes(4, "little", signed=True),
            _NUMBERS.pack((end_ns - start_ns) * 1e-6, float(error is None)),
            (
                *ids,
                parent[1] if parent else "",
                json_of(self.fields),
                f"{type(error).__name__}: {text_of(error)}" if error is not None else "",
            ),
            t_ns=start_ns + session.offset_ns,
        )

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Time every call of a function."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def timed_coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
                with Span(self._session, self.name, self.fields):
                    return await function(*args, **kwargs)

            return timed_coroutine  # type: ignore[return-value]

        @functools.wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            with Span(self._session, self.name, self.fields):
                return function(*args, **kwargs)

        return timed


def json_of(fields: Mapping[str, object]) -> str:
    """A JSON object, or "" without fields; what JSON has no word for, NaN included, is put as its `repr`."""
    pairs = [
        f"{json.dumps(name if type(name) is str else text_of(name))}: {_word(value)}" for name, value in fields.items()
    ]
    return "{" + ", ".join(pairs) + "}" if pairs else ""


def _word(value: object) -> str:
    if type(value) is int:
        return str(value)
    if type(value) is str and len(value) < _LONGEST // 8:
        return json.dumps(value)
    try:
        word = json.dumps(value, default=_shown, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # a key that is no text, NaN, or a circle
        word = ""
    return word if word and len(word) <= _LONGEST else json.dumps(_shown(value))


def _shown(value: object) -> str:
    return text_of(value, repr)[:_LONGEST]


# Epochs --------------------------------------------------------------------------------------------------


def note_begin(session: Session, iterator: Any, start_ns: int) -> None:
    """The first batch of a pass has come: remember when it was asked for, and how many steps there had been."""
    setattr(iterator, _BEGIN, (start_ns, session.steps))
    session.guard.run("inspection", session.on_pass, iterator)
    session.guard.run("config", note_loader, session, iterator)


def note_end(session: Session, iterator: Any, end_ns: int) -> None:
    """The data has come to its end: a row, if optimizer steps were made on it; a pass to evaluate is none."""
    begin = iterator.__dict__.pop(_BEGIN, None)
    if begin is None or session.steps <= begin[1] or session.has_told_epochs:
        return
    start_ns, steps = begin
    session.put_frame(
        SPANS.number,
        session.name_id("epoch").to_bytes(4, "little", signed=True),
        _NUMBERS.pack((end_ns - start_ns) * 1e-6, 1.0),
        (os.urandom(16).hex(), os.urandom(8).hex(), "", f'{{"steps": {session.steps - steps}}}', ""),
        t_ns=start_ns + session.offset_ns,
    )
