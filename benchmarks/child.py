"""Every measurement is a fresh process: one that has switched hooks on and off before measures something else.

Python specialises its bytecode to what it has seen; a long-lived process that
toggles instrumentation loses that and no longer runs like a user's training.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_TIMEOUT_S = 900


class ChildError(RuntimeError):
    """A measuring process failed; its output is the message."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a child sees: this checkout, one thread, nothing of a surrounding recording.

    Its modules are compiled once and kept, as those of an installed package are.
    """
    left_out = ("STETHOS_", "PYTHONDONTWRITEBYTECODE")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    paths = [str(ROOT), str(ROOT / "src"), *filter(None, [inherited.get("PYTHONPATH")])]
    return {**inherited, **dict.fromkeys(_ONE_THREAD, "1"), "PYTHONPATH": os.pathsep.join(paths), **(extra or {})}


class Child:
    """A process that runs `benchmarks.MODULE`, is given a job, and leaves its result in a file."""

    def __init__(self, module: str, job: Mapping[str, Any], extra: Mapping[str, str] | None = None) -> None:
        self._module = module
        self._files = tempfile.TemporaryDirectory(prefix="stethos-bench-")
        self._result = Path(self._files.name) / "result.json"
        self._log = Path(self._files.name) / "log"
        command = [sys.executable, "-m", f"benchmarks.{module}", str(self._result), json.dumps(job)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment(extra), cwd=ROOT
            )

    def wait_for_result(self) -> Any:
        """The result of a process that goes on after it."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not self._result.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self._fail()
            time.sleep(0.02)
        return json.loads(self._result.read_text(encoding="utf-8"))

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def finish(self) -> Any:
        """Wait for the end; the result, with `exit_ms` from its being written to the death of the process."""
        self.process.wait(_TIMEOUT_S)
        ended_ns = time.monotonic_ns()
        if self.process.returncode or not self._result.exists():
            self._fail()
        result = json.loads(self._result.read_text(encoding="utf-8"))
        if isinstance(result, dict) and "done_ns" in result:
            result["exit_ms"] = (ended_ns - result["done_ns"]) / 1e6
        self.close()
        return result

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._files.cleanup()

    def _fail(self) -> None:
        output = self._log.read_text(encoding="utf-8", errors="replace")[-3000:]
        status = self.process.poll()
        self.close()
        raise ChildError(f"{self._module} ended with {status}\n{output}")


def run_child(module: str, job: Mapping[str, Any], extra: Mapping[str, str] | None = None) -> Any:
    """Run a measuring process to its end."""
    return Child(module, job, extra).finish()


def job_of_child() -> tuple[Path, dict[str, Any]]:
    """In the child: where the result goes, and the job."""
    return Path(sys.argv[1]), json.loads(sys.argv[2])


def leave_result(path: Path, result: Mapping[str, Any]) -> None:
    """In the child: hand the result over at once and whole."""
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps({**result, "done_ns": time.monotonic_ns()}), encoding="utf-8")
    temporary.replace(path)


def wait_for_drainer(run: Path, timeout_s: float = 20.0) -> None:
    """Let the last run's drainer finish, so that it does not run beside the next measurement."""
    from stethos.record.place import RunPlace  # here, because a bare training must have nothing of ours
    from stethos.record.spawn import is_drained

    deadline = time.monotonic() + timeout_s
    while is_drained(RunPlace(run)) and time.monotonic() < deadline:
        time.sleep(0.02)
