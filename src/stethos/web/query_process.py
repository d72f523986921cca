"""Runs the user's own SQL in a process of its own, which is ended if it is slow or needs too much memory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from stethos.errors import QueryError
from stethos.record.place import RunPlace
from stethos.store.run import Run
from stethos.web.encode import encode
from stethos.web.line_process import LineProcess, answer_lines

SQL_ROWS = 10_000
SQL_TIMEOUT_S = 15.0
SQL_MEMORY_BYTES = 256 << 20
ANSWER_BYTES = 16 << 20
_GRACE_S = 5.0
_WAIT_S = 20.0


class QueryProcess:
    """Hands queries to the process, one at a time; begins a new one where the last had to be ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = LineProcess("stethos.web.query_process")
        self._is_closed = False

    def ask(self, run: Path, sql: str, timeout_s: float = SQL_TIMEOUT_S) -> bytes:
        """The result as JSON; QueryError if the query is wrong, or needs too much of anything."""
        if not self._lock.acquire(timeout=_WAIT_S):
            raise QueryError("another query is still running", hint="try again when it has ended")
        try:
            if self._is_closed:
                raise QueryError("the server is about to stop", hint="start it again")
            return self._process.ask({"run": str(run), "sql": sql, "timeout_s": timeout_s}, timeout_s + _GRACE_S)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the process; who waits for an answer gets a QueryError."""
        self._is_closed = True
        self._process.kill()
        with self._lock:
            self._process.close()


class _Queries:
    """In the process: the run that was asked about last stays open."""

    def __init__(self) -> None:
        self._run: Run | None = None

    def answer(self, job: dict[str, Any]) -> bytes:
        if self._run is None or str(self._run.path) != job["run"]:
            if self._run is not None:
                self._run.close()
            self._run = Run(RunPlace(Path(job["run"])), memory_bytes=SQL_MEMORY_BYTES)
        return encode(self._run.rows(job["sql"], limit_rows=SQL_ROWS, timeout_s=job["timeout_s"]).as_dict())


if __name__ == "__main__":
    answer_lines(_Queries().answer, ANSWER_BYTES)
