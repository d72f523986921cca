"""A user's SQL in a process of its own, which is ended where it takes too long or too much memory.

It is nobody's child, so `os.wait()` in the user's program never sees it, and ends with the pipe it is asked through.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from stethos.errors import QueryError, StethosError
from stethos.record.border import has_input
from stethos.record.place import RunPlace, is_alive, start_ticks
from stethos.settings import clean_environment
from stethos.store.limit import STUCK, bound_memory, memory_bytes
from stethos.wiring import PYTHON

if TYPE_CHECKING:
    import pyarrow as pa

    from stethos.store.run import Run

_PATIENCE_S = 60.0  # for starting, for rows that come and go, and for ending itself
_OK, _ERROR = b"+", b"-"
_HEAD = struct.Struct("<cq")
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from stethos.store.asker import main; main(sys.argv[1])"


class Asker:
    """Answers queries over one run. Not for several threads at once."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._pid: int | None = None
        self._ask = self._answer = -1
        self._end: Callable[[], object] = lambda: None

    def arrow(self, sql: str, limit_rows: int | None, timeout_s: float) -> pa.Table:
        """The result; QueryError if the query is wrong or needs too much of anything."""
        import pyarrow as pa

        if self._pid is None:
            self._start()
        deadline = time.monotonic() + timeout_s + _PATIENCE_S
        job = {"sql": sql, "limit_rows": limit_rows, "timeout_s": timeout_s}
        try:
            os.write(self._ask, json.dumps(job).encode() + b"\n")
            status, size = _HEAD.unpack(self._read(_HEAD.size, deadline))
            body = self._read(size, deadline)
        except (OSError, EOFError):
            self.close()
            raise QueryError(
                "the query ended its process: it may need too much memory", hint="ask for less at a time"
            ) from None
        except BaseException:
            self.close()  # whatever it answers now would be taken for the answer to the next query
            raise
        if status == _OK:
            return pa.ipc.open_stream(pa.py_buffer(body)).read_all()
        told = json.loads(body)
        if told["error"] == STUCK:
            self.close()
        raise QueryError(told["error"], hint=told["hint"])

    def close(self) -> None:
        """End the process."""
        self._end()
        self._pid = None

    def _start(self) -> None:
        inner_in, self._ask = os.pipe()
        self._answer, inner_out = os.pipe()
        words = [*PYTHON, "-c", _START, str(_PACKAGE_ROOT), str(self._run)]
        try:
            started = subprocess.run(
                ["/bin/sh", "-c", 'exec 3<&0; "$0" "$@" <&3 3<&- 2>/dev/null & echo $! >&2', *words],
                env=clean_environment(), stdin=inner_in, stdout=inner_out, stderr=subprocess.PIPE, check=True,
            )  # fmt: skip
        finally:
            os.close(inner_in)
            os.close(inner_out)
        self._pid = int(started.stderr)
        self._end = weakref.finalize(self, _end, self._pid, start_ticks(self._pid), (self._ask, self._answer))

    def _read(self, size: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while size:
            if not has_input(self._answer, max(0.0, deadline - time.monotonic())):
                raise QueryError(STUCK, hint="narrow it, or allow more time")
            parts.append(os.read(self._answer, min(size, 1 << 20)))
            if not parts[-1]:
                raise EOFError
            size -= len(parts[-1])
        return b"".join(parts)


def _end(pid: int, ticks: int | None, descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    if ticks is not None and is_alive(pid, ticks):
        os.kill(pid, signal.SIGKILL)


def main(path: str) -> None:
    """In the process: answer each line with one result, until there are no more."""
    import duckdb  # noqa: F401  # what it takes is not the query's
    import pyarrow  # noqa: F401

    from stethos.store.run import Run

    limit = memory_bytes()
    bound_memory(limit)
    run: Run | None = None
    body: bytes | memoryview
    for line in sys.stdin.buffer:
        try:
            run = run or Run(RunPlace(Path(path)), memory_bytes=limit, when_stuck=_give_up)
            status, body = _OK, _answer(run, **json.loads(line))
        except StethosError as error:
            status, body = _ERROR, _told(error.message, error.hint)
        except (OSError, MemoryError) as error:
            status, body = _ERROR, _told(f"the query needs too much memory, or the run cannot be read: {error}")
        _write(status, body)


def _give_up() -> NoReturn:
    _write(_ERROR, _told(STUCK, "narrow it, or allow more time"))
    os._exit(QueryError.exit_code)


def _told(error: str, hint: str = "ask for less at a time") -> bytes:
    return json.dumps({"error": error, "hint": hint}).encode()


def _write(status: bytes, body: bytes | memoryview) -> None:
    sys.stdout.buffer.write(_HEAD.pack(status, len(body)))
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()


def _answer(run: Run, sql: str, limit_rows: int | None, timeout_s: float) -> bytes | memoryview:
    import pyarrow as pa

    rows = run.arrow(sql, limit_rows=limit_rows, timeout_s=timeout_s)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return memoryview(sink.getvalue())
