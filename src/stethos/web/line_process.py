"""A process of ours that answers one line with one line, and is ended if it is slow or needs too much memory.

DuckDB's limits hold for what it keeps itself, not for every intermediate value, so the process is watched from outside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from stethos import errors
from stethos.errors import QueryError, StethosError
from stethos.record.border import has_input
from stethos.settings import clean_environment
from stethos.web.encode import encode
from stethos.wiring import PYTHON

PROCESS_MEMORY_BYTES = 900 << 20
_LOOK_S = 0.05


class LineProcess:
    """Hands jobs to `python -m MODULE`; begins a new one where the last had to be ended. For one thread at a time."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin the process if there is none; it gets ready while we go on."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [*PYTHON, "-m", self._module],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment(),
            )  # fmt: skip

    def ask(self, job: Mapping[str, Any], limit_s: float) -> bytes:
        """Its answer; StethosError if there is none, whichever the process met with, or OSError."""
        self.start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._answer(self._process, limit_s)
        except BrokenPipeError:
            self.close()
            raise QueryError("the query ended its process", hint="ask for less at a time") from None
        except BaseException:
            self.close()  # whatever it answers now would be taken for the answer to the next job
            raise
        kind, _, body = answer.partition(b" ")
        if kind == b"ok":
            return body
        told = json.loads(body)
        if kind == b"file":
            raise OSError(told["errno"], told["error"])
        raise getattr(errors, kind.decode())(told["error"], hint=told["hint"])

    def kill(self) -> None:
        """End the process while another thread waits for its answer; that one gets a QueryError."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _answer(self, process: subprocess.Popen[bytes], limit_s: float) -> bytes:
        """One line of the process; it is ended if that takes too long or too much."""
        assert process.stdout is not None
        parts: list[bytes] = []
        deadline = time.monotonic() + limit_s
        seen = psutil.Process(process.pid)
        while not (parts and parts[-1].endswith(b"\n")):
            if has_input(process.stdout, _LOOK_S):
                parts.append(os.read(process.stdout.fileno(), 1 << 20))
                if not parts[-1]:
                    raise QueryError("the query ended its process", hint="ask for less at a time")
            elif rss_bytes(seen) > PROCESS_MEMORY_BYTES:
                raise QueryError(
                    f"the query needs more than {PROCESS_MEMORY_BYTES >> 20} MB of memory",
                    hint="ask for less at a time, or use `stethos query` on a machine that has it",
                )
            elif time.monotonic() > deadline:
                raise QueryError("the query took too long and did not stop", hint="narrow it")
        return b"".join(parts).rstrip(b"\n")


def rss_bytes(process: psutil.Process) -> int:
    """The memory that a process occupies; 0 if it has ended."""
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def answer_lines(work: Callable[[dict[str, Any]], bytes], most_bytes: int) -> None:
    """In the process: answer one line with one line, until there are no more."""
    for line in sys.stdin.buffer:
        try:
            body = work(json.loads(line))
            if len(body) > most_bytes:
                raise QueryError(f"the answer is larger than {most_bytes >> 20} MB", hint="ask for less at a time")
            answer = b"ok " + body
        except StethosError as error:
            answer = type(error).__name__.encode() + b" " + encode({"error": error.message, "hint": error.hint})
        except OSError as error:
            answer = b"file " + encode({"errno": error.errno or 0, "error": error.strerror or str(error)})
        except MemoryError:
            answer = b"QueryError " + encode({"error": "not enough memory", "hint": "ask for less at a time"})
        _write(answer + b"\n")


def _write(content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(1, rest) :]
