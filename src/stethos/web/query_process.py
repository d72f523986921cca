"""Runs the user's own SQL in a process of its own, which is ended if it is slow or needs too much memory.

DuckDB's limits hold for what it keeps itself, not for every intermediate
value, so the process is watched from outside as well.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from stethos.errors import QueryError, StethosError, UsageError
from stethos.record.place import RunPlace
from stethos.settings import clean_environment
from stethos.store.run import Run
from stethos.web.encode import encode

SQL_ROWS = 10_000
SQL_TIMEOUT_S = 15.0
SQL_MEMORY_BYTES = 256 << 20
PROCESS_MEMORY_BYTES = 900 << 20
ANSWER_BYTES = 16 << 20
_GRACE_S = 5.0
_WAIT_S = 20.0
_LOOK_S = 0.05


class QueryProcess:
    """Hands queries to the process, one at a time; begins a new one where the last had to be ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, run: Path, sql: str, timeout_s: float = SQL_TIMEOUT_S) -> bytes:
        """The result as JSON; QueryError if the query is wrong, or needs too much of anything."""
        if not self._lock.acquire(timeout=_WAIT_S):
            raise QueryError("another query is still running", hint="try again when it has ended")
        try:
            process = self._running()
            assert process.stdin is not None
            job = {"run": str(run), "sql": sql, "timeout_s": timeout_s}
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
            answer = self._answer(process, timeout_s + _GRACE_S)
        except BrokenPipeError:
            self.close()
            raise QueryError("the query ended its process", hint="ask for less at a time") from None
        finally:
            self._lock.release()
        status, _, body = answer.partition(b" ")
        if status == b"ok":
            return body
        failure = json.loads(body)
        raise QueryError(failure["error"], hint=failure["hint"])

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stethos.web.query_process"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment(),
            )  # fmt: skip
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], limit_s: float) -> bytes:
        """One line of the process; it is ended if that takes too long or too much."""
        assert process.stdout is not None
        parts: list[bytes] = []
        deadline = time.monotonic() + limit_s
        seen = psutil.Process(process.pid)
        while not (parts and parts[-1].endswith(b"\n")):
            if select.select([process.stdout], [], [], _LOOK_S)[0]:
                parts.append(os.read(process.stdout.fileno(), 1 << 20))
                if not parts[-1]:
                    self.close()
                    raise QueryError("the query ended its process", hint="ask for less at a time")
            elif rss_bytes(seen) > PROCESS_MEMORY_BYTES:
                self.close()
                raise QueryError(
                    f"the query needs more than {PROCESS_MEMORY_BYTES >> 20} MB of memory",
                    hint="ask for less at a time, or use `stethos query` on a machine that has it",
                )
            elif time.monotonic() > deadline:
                self.close()
                raise QueryError("the query took too long and did not stop", hint="narrow it")
        return b"".join(parts).rstrip(b"\n")


def rss_bytes(process: psutil.Process) -> int:
    """The memory that a process occupies; 0 if it has ended."""
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def main() -> None:
    """In the process: answer one line with one line, until there are no more."""
    run: Run | None = None
    for line in sys.stdin.buffer:
        job = json.loads(line)
        try:
            if run is None or str(run.path) != job["run"]:
                if run is not None:
                    run.close()
                run = Run(RunPlace(Path(job["run"])), memory_bytes=SQL_MEMORY_BYTES)
            body = encode(run.rows(job["sql"], limit_rows=SQL_ROWS, timeout_s=job["timeout_s"]).as_dict())
            if len(body) > ANSWER_BYTES:
                raise UsageError(f"the answer is larger than {ANSWER_BYTES >> 20} MB", hint="ask for less at a time")
            answer = b"ok " + body
        except StethosError as error:
            answer = b"error " + encode({"error": error.message, "hint": error.hint})
        except (OSError, MemoryError) as error:
            answer = b"error " + encode({"error": f"the run cannot be read: {error}", "hint": "is it still there?"})
        _write(answer + b"\n")


def _write(content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(1, rest) :]


if __name__ == "__main__":
    main()
