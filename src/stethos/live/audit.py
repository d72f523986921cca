"""Who did what to the training: a row of `audit` before it happens, and one with the outcome.

Users who are not let in leave a row, too.
"""

from __future__ import annotations

import itertools
import json
import struct
import time
from types import TracebackType

from stethos.errors import LiveError
from stethos.live.request import Request
from stethos.observe.session import Session
from stethos.schema import AUDIT, NULL_F64

_NUMBER = itertools.count(1)
_LONGEST = 16_000


class Audit:
    """Around one act. LiveError, and the act does not happen, if the first row cannot be written."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._number = next(_NUMBER)
        self._began = time.monotonic()
        arguments = {name: value for name, value in request.content.items() if name not in ("op", "who")}
        code = arguments.pop("code", None)
        self._detail = str(code) if code is not None else json.dumps(arguments, default=str)

    def __enter__(self) -> Audit:
        if not self._put("asked", NULL_F64, ""):
            raise LiveError(
                "not done: it could not be written down first (the recording's buffer is full)",
                hint="`stethos doctor` says whether the drainer is at work",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome = "" if kind is None else f"{kind.__name__}: {error}"
        self._put("done" if kind is None else "refused", (time.monotonic() - self._began) * 1e3, outcome)

    def _put(self, event: str, duration_ms: float, outcome: str) -> bool:
        request = self._request
        numbers = (self._number, request.pid, request.uid, duration_ms)
        return _put_row(request.session, event, request.op[:50], numbers, (request.who, self._detail, outcome))


def note_refusal(session: Session, pid: int, uid: int, times: int) -> None:
    """A row for another user who was not let in, for the `times`-th time; written only where that is a power of two."""
    if times & (times - 1) == 0:
        numbers = (next(_NUMBER), pid, uid, NULL_F64)
        _put_row(session, "refused", "connect", numbers, ("", f"time {times}", "not the owner of the process"))


def _put_row(session: Session, event: str, op: str, numbers: tuple[float, ...], texts: tuple[str, str, str]) -> bool:
    names = struct.pack("<2i", session.name_id(event), session.name_id(op))
    who, detail, outcome = texts
    return session.put_frame(AUDIT.number, names, struct.pack("<4d", *numbers), (who, detail[:_LONGEST], outcome))
