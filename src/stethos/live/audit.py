"""Who did what to the training: a row of `audit` before it happens, and one with the outcome."""

from __future__ import annotations

import itertools
import json
import struct
import time
from types import TracebackType

from stethos.errors import LiveError
from stethos.live.request import Request
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
        session, request = self._request.session, self._request
        names = struct.pack("<2i", session.name_id(event), session.name_id(request.op[:50]))
        numbers = struct.pack("<4d", self._number, request.pid, request.uid, duration_ms)
        return session.put_frame(AUDIT.number, names, numbers, (request.who, self._detail[:_LONGEST], outcome))
