"""Python's `logging`, recorded beside whatever the program does with it.

`Logger.callHandlers` is wrapped: every record that passes its logger's
level is seen, and nothing about the program's own handlers changes (a
handler on the root logger would silence `basicConfig` and the last resort).
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from stethos.guard import text_of
from stethos.observe.session import Session
from stethos.observe.spans import json_of
from stethos.schema import LOGS

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class LogWatch:
    """Records what the program says through `logging`, handlers or not; its own handlers are called as ever."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._original: Callable[[logging.Logger, logging.LogRecord], None] | None = None

    def install(self) -> None:
        if self._original is not None:
            return
        original = self._original = logging.Logger.callHandlers
        record = self._session.guard.wrap("logs", self._record)

        def call_handlers(logger: logging.Logger, entry: logging.LogRecord) -> None:
            if self._original is not None and logger.name != "stethos":
                record(entry)
            original(logger, entry)

        self._ours = call_handlers
        logging.Logger.callHandlers = call_handlers  # type: ignore[assignment,method-assign]
        self._session.on_close.append(self.uninstall)

    def uninstall(self) -> None:
        if self._original is not None and logging.Logger.callHandlers is self._ours:
            logging.Logger.callHandlers = self._original  # type: ignore[assignment,method-assign]
        self._original = None

    def _record(self, entry: logging.LogRecord) -> None:
        fields = {name: value for name, value in entry.__dict__.items() if name not in _STANDARD}
        fields.pop("_ray_timestamp_ns", None)  # Ray puts it into every record, once it is imported
        exception = ""
        if entry.exc_info and entry.exc_info[1] is not None:
            exception = "".join(traceback.format_exception(entry.exc_info[1]))
        name_id = self._session.name_id
        ids = b"".join(name_id(text).to_bytes(4, "little", signed=True) for text in (entry.levelname, entry.name))
        message = text_of(entry, logging.LogRecord.getMessage)
        self._session.put_frame(LOGS.number, ids, b"", (message, json_of(fields), exception))
