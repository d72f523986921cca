"""Where processes spend their time: their stacks, sampled from outside by py-spy for some seconds.

Our own frames and threads are left out. Ctrl-C ends the sampling early; what was seen until then counts.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from stethos.errors import LiveError, RunNotFoundError
from stethos.live.permission import why_not_readable
from stethos.live.stack import OUR_DIRECTORY, OUR_THREADS, find_spy
from stethos.record.place import start_ticks

_POLL_S = 0.1
_PATIENCE_S = 30.0  # for py-spy to read symbols before, and to write after


class CodeLine(NamedTuple):
    """A function in a stack; `line` is the one that ran, 0 if unknown."""

    func: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """How often each stack (outermost frame first) of each thread of a process was seen."""

    pid: int
    seconds: float
    stacks: Counter[tuple[str, tuple[CodeLine, ...]]] = field(default_factory=Counter)

    @property
    def samples(self) -> int:
        return sum(self.stacks.values())


def sample(
    pids: Sequence[int],
    seconds: float,
    *,
    rate: int = 100,
    native: bool = False,
    idle: bool = False,
    advance: Callable[[float], None] = lambda seconds: None,
) -> list[Sampled]:
    """Sample every process at once; a StethosError says which one cannot be, and why.

    A process that ends meanwhile has the samples until then. With `idle` threads that wait count, too.
    """
    spy = find_spy()
    if spy is None:
        raise LiveError("py-spy is not installed", hint="pip install py-spy")
    for pid in pids:
        if start_ticks(pid) is None:
            raise RunNotFoundError(f"no process with pid {pid}", hint="list what is alive with `stethos ls`")
    flags = [*(["--native"] if native else []), *(["--idle"] if idle else [])]
    with tempfile.TemporaryDirectory(prefix="stethos-flame-") as directory:
        outputs = {pid: Path(directory) / f"{pid}.json" for pid in pids}
        spies = {
            pid: subprocess.Popen(
                [spy, "record", "--pid", str(pid), "--format", "speedscope", "--output", str(output), "--duration",
                 str(max(1, round(seconds))), "--rate", str(rate), "--full-filenames", "--threads",
                 *flags],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                start_new_session=True,
            )
            for pid, output in outputs.items()
        }  # fmt: skip
        try:
            _wait(list(spies.values()), seconds, advance)
        finally:
            said = {pid: _end(one) for pid, one in spies.items()}
        return [_read(pid, output, said[pid]) for pid, output in outputs.items()]


def _wait(spies: Sequence[subprocess.Popen[str]], seconds: float, advance: Callable[[float], None]) -> None:
    began, shown = time.monotonic(), 0.0
    try:
        while any(one.poll() is None for one in spies):
            time.sleep(_POLL_S)
            passed = time.monotonic() - began
            advance(max(0.0, min(passed, seconds) - shown))
            shown = passed
            if passed > seconds + _PATIENCE_S:
                break
    except KeyboardInterrupt:
        for one in spies:
            if one.poll() is None:
                one.send_signal(signal.SIGINT)  # py-spy writes what it has
        for one in spies:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(_PATIENCE_S)


def _end(spy: subprocess.Popen[str]) -> str:
    """What py-spy said, once it is gone."""
    if spy.poll() is None:
        spy.kill()
    return spy.communicate()[1] or ""


def _read(pid: int, output: Path, said: str) -> Sampled:
    try:
        content = json.loads(output.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("py-spy>")]
        trouble = next((line.removeprefix("Error: ") for line in lines), "py-spy gave no answer")
        raise LiveError(f"cannot sample process {pid}: {trouble}", hint=why_not_readable(pid)) from None
    sites = [
        CodeLine(str(one["name"]), str(one.get("file") or ""), int(one.get("line") or 0)) for one in _frames(content)
    ]
    stacks: Counter[tuple[str, tuple[CodeLine, ...]]] = Counter()
    seconds = 0.0
    for profile in content.get("profiles", ()):
        seconds = max(seconds, float(profile.get("endValue") or 0))
        for numbers in profile.get("samples", ()):
            thread, *rest = (sites[number] for number in numbers)
            name = thread.func.partition(": ")[2] or thread.func
            kept = tuple(site for site in rest if not site.file.startswith(OUR_DIRECTORY))
            if name not in OUR_THREADS and kept:
                stacks[name, kept] += 1
    return Sampled(pid, seconds, stacks)


def _frames(content: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    frames: Sequence[Mapping[str, Any]] = content.get("shared", {}).get("frames", ())
    return frames
