"""Timed pieces of work: `with stethos.span("load", shard=3):`, or the same as a decorator."""

from __future__ import annotations

import functools
import json
import os
import struct
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from stethos.clock import monotonic_ns
from stethos.observe.session import Session
from stethos.schema import SPANS

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS = struct.Struct("<dd")
# The open span of this thread or task: (trace, span).
_OPEN: ContextVar[tuple[str, str] | None] = ContextVar("stethos_span", default=None)


class Span:
    """One piece of work. An exception is recorded and passes on. Reusable as a decorator, also of coroutines."""

    def __init__(self, session: Callable[[], Session | None], name: str, fields: dict[str, Any]) -> None:
        self._session = session
        self.name = name
        self.fields = fields
        self._start_ns = 0
        self._token: Token[tuple[str, str] | None] | None = None
        self._parent: tuple[str, str] | None = None

    def __enter__(self) -> Span:
        self._parent = _OPEN.get()
        trace = self._parent[0] if self._parent else os.urandom(16).hex()
        self._token = _OPEN.set((trace, os.urandom(8).hex()))
        self._start_ns = monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        duration_ns = monotonic_ns() - self._start_ns
        ids = _OPEN.get()
        if self._token is not None:
            _OPEN.reset(self._token)
        session = self._session()
        if session is not None and ids is not None:
            session.guard.run("spans", self._record, session, duration_ns, ids, error)

    def _record(self, session: Session, duration_ns: int, ids: tuple[str, str], error: BaseException | None) -> None:
        parent = self._parent[1] if self._parent else ""
        fields = json.dumps(self.fields, default=repr) if self.fields else ""
        exception = f"{type(error).__name__}: {error}" if error is not None else ""
        session.put_frame(
            SPANS.number,
            session.name_id(self.name).to_bytes(4, "little", signed=True),
            _NUMBERS.pack(duration_ns * 1e-6, float(error is None)),
            (*ids, parent, fields, exception),
            t_ns=self._start_ns + session.offset_ns,
        )

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Time every call of a function."""
        if _is_coroutine(function):

            @functools.wraps(function)
            async def timed_coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
                with Span(self._session, self.name, self.fields):
                    return await function(*args, **kwargs)  # type: ignore[misc]

            return timed_coroutine  # type: ignore[return-value]

        @functools.wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            with Span(self._session, self.name, self.fields):
                return function(*args, **kwargs)

        return timed


def _is_coroutine(function: Callable[..., object]) -> bool:
    code = getattr(function, "__code__", None)
    return bool(code is not None and code.co_flags & 0x80)
