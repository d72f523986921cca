"""Python's and torch's warnings, recorded in `logs` as they are shown; what the program prints stays the same."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

from stethos.guard import text_of
from stethos.observe.session import Session
from stethos.schema import LOGS

_MOST = 200  # of one process


class WarningWatch:
    """Sees each warning that Python is about to print, after its filters."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._original: Callable[[Any], None] | None = None
        self._count = 0

    def install(self) -> None:
        original = getattr(warnings, "_showwarnmsg_impl", None)
        if self._original is not None or original is None:
            return
        record = self._session.guard.wrap("warnings", self._record)

        def show(message: Any) -> None:
            if self._original is not None:
                record(message)
            original(message)

        self._original, self._ours = original, show
        warnings._showwarnmsg_impl = show  # type: ignore[attr-defined]
        self._session.on_close.append(self.uninstall)

    def uninstall(self) -> None:
        if self._original is not None and warnings._showwarnmsg_impl is self._ours:  # type: ignore[attr-defined]
            warnings._showwarnmsg_impl = self._original  # type: ignore[attr-defined]
        self._original = None

    def _record(self, message: Any) -> None:
        if self._count >= _MOST:
            return
        self._count += 1
        name_id = self._session.name_id
        ids = b"".join(name_id(text).to_bytes(4, "little", signed=True) for text in ("WARNING", "py.warnings"))
        text = f"{message.category.__name__}: {text_of(message.message)}"
        fields = json.dumps({"file": str(message.filename), "line": message.lineno}, ensure_ascii=False)
        self._session.put_frame(LOGS.number, ids, b"", (text, fields, ""))
