"""Real processes for tests: starting them, waiting for them, and finding what they left behind."""

from __future__ import annotations

import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

import stethos
from stethos.record.place import ProcessPlace, RunPlace
from stethos.schema import RECORDED
from stethos.store.run import Run, open_run

SOURCE = Path(stethos.__file__).resolve().parents[1]
PROGRAMS = Path(__file__).resolve().parent / "programs"
UNBOUNDED = os.pathsep.join((str(SOURCE), str(Path(__file__).resolve().parent / "unbounded")))  # a path to import from
DEADLINE_S = 240.0
# Below those that the kernel hands out, above those of Ray's workers, without those of its clients' servers.
_PORTS: list[int] = [*range(20_000, 23_000), *range(24_000, 32_000)]
_GIVEN: set[int] = set()
T = TypeVar("T")


def environment(**more: str) -> dict[str, str]:
    """Ours, with `stethos` importable from where these tests import it, and nothing of an outer run or terminal."""
    outer = ("STETHOS_", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    return {**kept, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
            "STETHOS_VERDICT": "0", **more}  # fmt: skip


def commands_under(pid: int) -> dict[psutil.Process, list[str]]:
    """The children of a process that live, with their command lines; one that has ended may be listed without."""
    found: dict[psutil.Process, list[str]] = {}
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):  # of which psutil.ZombieProcess is one
            found[child] = child.cmdline()
    return found


def start(*words: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Start a Python program with pipes to it."""
    given = {
        "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True,
        "env": environment(),
    }  # fmt: skip
    return subprocess.Popen([sys.executable, *map(str, words)], **{**given, **options})


def finish(process: subprocess.Popen[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Wait for the program's end; what it wrote."""
    try:
        out, err = process.communicate(stdin, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start_program(name: str, *words: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Start one of `tests/programs`."""
    return start(PROGRAMS / name, *words, **options)


def start_command(*words: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Start `stethos WORDS`."""
    return start("-m", "stethos.cli.main", *words, **options)


def command(*words: str | Path, stdin: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `stethos WORDS` to its end."""
    return finish(start_command(*words, **options), stdin)


def wait_until(condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Look again and again, and return what was seen; fail if it does not come true for a long time.

    What takes long is looked at less often: a look may cost as much as what it waits for.
    """
    began = time.monotonic()
    while not (seen := condition()):
        waited_s = time.monotonic() - began
        if waited_s > deadline_s:
            raise AssertionError(f"{what} did not come within {deadline_s:g} s")
        time.sleep(min(0.005 + waited_s / 20, 0.05))
    return seen


def free_port() -> int:
    """A port for a program that must be told one; nobody is given it by chance before the program takes it."""
    draw = random.SystemRandom()
    while True:
        port = draw.choice(_PORTS)
        if port in _GIVEN:
            continue
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _GIVEN.add(port)
        return port


def drainers_of(path: Path) -> list[int]:
    """The drainers at work on a run, or on any run below a directory; the shell that starts one is none."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            program, *words = _words_of(int(entry))
            is_drainer = any("stethos.record.drainer" in word for word in words) and not program.endswith("/sh")
            if is_drainer and words[-1].startswith(str(path)):
                found.append(int(entry))
    return found


def _words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return [""]


def kill_drainer(path: Path) -> int:
    """`kill -9` the drainer of a run as soon as there is one; return its pid."""
    pid = wait_until(lambda: drainers_of(path), f"a drainer of {path}")[0]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid not in drainers_of(path), f"the end of drainer {pid}")
    return pid


def wait_for_rest(path: Path) -> None:
    """Wait until everything of a run is collected, and nothing else of it is about to be removed.

    Its drainer lingers a little for others to join.
    """
    run = RunPlace(path)
    wait_until(lambda: run.processes() and all(map(_is_at_rest, run.processes())), f"the rest of {path}")


def _is_at_rest(process: ProcessPlace) -> bool:
    """Whether a process is collected and its ring and segments are gone, which go after its last manifest."""
    return "ended" in process.manifest() and not process.ring().exists() and not any(process.scratch().glob("*.seg"))


def checked_books(run: Run) -> dict[str, Any]:
    """The run's totals, after checking that every row of every process is accounted for."""
    summary = run.summary()
    for books in (summary, *run.processes()):
        assert books["rows_produced"] == books["rows_stored"] + books["rows_dropped"] + books["rows_lost"], books
    assert summary["rows_stored"] == sum(summary["rows"][name] for name in _RECORDED)
    return summary


_RECORDED = tuple(table.name for table in RECORDED.values())


def collected(path: Path) -> tuple[Run, dict[str, Any]]:
    """A run that is over, and its totals."""
    wait_for_rest(path)
    run = open_run(path)
    return run, checked_books(run)


def metric_values(run: Run, name: str = "i") -> list[int]:
    """All values of a metric, in their order."""
    rows = run.rows(f"SELECT value FROM metrics WHERE name = '{name}' ORDER BY t_ns, value")
    return [int(value) for (value,) in rows.values]


def only_process(run: Run) -> dict[str, Any]:
    (process,) = run.processes()
    return process


class Counter:
    """A number in a mapped file, which a program that may be killed at any moment writes and the test reads.

    A program that is held does not begin to count before it is released.
    """

    def __init__(self, path: Path, *, is_held: bool = False) -> None:
        self.path = path
        path.write_bytes((-is_held).to_bytes(8, "little", signed=True))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def release(self) -> None:
        self._map[:] = bytes(8)

    @property
    def value(self) -> int:
        return int.from_bytes(self._map, "little", signed=True)
