"""Timed pieces of work: `with stethos.span("load", shard=3):`, or the same as a decorator."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import struct
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from stethos.clock import monotonic_ns
from stethos.guard import text_of
from stethos.observe.fields import json_of
from stethos.observe.session import Session
from stethos.schema import SPANS

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS = struct.Struct("<dd")
_Ids = tuple[str, str]  # trace, span
# The open span of this thread or task.
_OPEN: ContextVar[_Ids | None] = ContextVar("stethos_span", default=None)


class Span:
    """One piece of work. An exception is recorded and passes on. Reusable as a decorator, also of coroutines."""

    def __init__(self, session: Callable[[], Session | None], name: str, fields: dict[str, Any]) -> None:
        self._session = session
        self.name = name
        self.fields = fields
        self._entered: list[tuple[Token[_Ids | None], _Ids, _Ids | None, int]] = []

    def __enter__(self) -> Span:
        parent = _OPEN.get()
        ids = (parent[0] if parent else os.urandom(16).hex(), os.urandom(8).hex())
        self._entered.append((_OPEN.set(ids), ids, parent, monotonic_ns()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end_ns = monotonic_ns()
        token, ids, parent, start_ns = self._entered.pop()
        with contextlib.suppress(ValueError):  # left in another context than entered, as async generators may be
            _OPEN.reset(token)
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
