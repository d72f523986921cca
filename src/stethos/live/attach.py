"""Getting into a process that was not started with us: a ladder of ways, each with a test whether it is open.

1. It is observed already: its agent answers.
2. `sys.remote_exec`, of Python 3.14 and newer, in a process of the same version.
3. hypno (`pip install "stethos[attach]"`), for older versions.
4. py-spy: stacks only; nothing gets into the process.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stethos.errors import LiveError, RunNotFoundError
from stethos.live.permission import has_ptrace, owner_of, ptrace_scope, why_not_readable
from stethos.live.registry import LiveProcess, live_process
from stethos.record.place import start_ticks

_PATIENCE_S = 30.0
_LOOK_S = 0.02
_PACKAGE = Path(__file__).resolve().parents[1]
_CODE = """
import importlib.util, sys
if "stethos" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("stethos", {init!r}, submodule_search_locations=[{package!r}])
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["stethos"] = _module
    _spec.loader.exec_module(_module)
from stethos.live.attached import begin_recording
begin_recording({run_dir!r}, {preset!r}, {overhead!r}, {note!r})
"""


@dataclass(frozen=True, slots=True)
class AttachMethod:
    """One way in. `why_closed(pid)` is empty if it is open; `inject(pid, code, is_forced)` runs code in the process."""

    name: str
    why_closed: Callable[[int], str]
    inject: Callable[[int, str, bool], None]


def attach(
    pid: int, run_dir: Path, preset: str, overhead: float, *, is_forced: bool = False
) -> tuple[LiveProcess, str]:
    """Begin recording in a process; it, and the rung that was taken. A StethosError says what is in the way.

    Forced, an injector does not wait for a safe moment for ever.
    """
    if start_ticks(pid) is None:
        raise RunNotFoundError(f"no process with pid {pid}", hint="list what is alive with `stethos ls`")
    known = live_process(pid)
    if known is not None and known.has_agent:
        return known, "agent"
    if not is_python(pid):
        raise LiveError(f"process {pid} is not a Python process", hint="give the pid of the training itself")
    reasons = []
    for rung in RUNGS:
        reason = rung.why_closed(pid)
        if reason:
            reasons.append(f"{rung.name}: {reason}")
            continue
        _enter(rung, pid, is_forced, run_dir, preset, overhead)
        return _arrived(pid), rung.name
    raise LiveError(
        f"cannot get into process {pid}: {'; '.join(reasons)}",
        hint=f"{_remedy(pid)}; stacks may be had all the same: `stethos {pid} backtrace`",
    )


def _enter(rung: AttachMethod, pid: int, is_forced: bool, run_dir: Path, preset: str, overhead: float) -> None:
    with tempfile.TemporaryDirectory(prefix="stethos-attach-") as scratch:
        note = Path(scratch) / "note"
        code = _CODE.format(
            init=str(_PACKAGE / "__init__.py"), package=str(_PACKAGE), run_dir=str(run_dir), preset=preset,
            overhead=overhead, note=str(note),
        )  # fmt: skip
        try:
            rung.inject(pid, code, is_forced)
        except (OSError, RuntimeError, ValueError) as error:
            raise LiveError(f"{rung.name} could not get into process {pid}: {error}", hint=_remedy(pid)) from None
        deadline = time.monotonic() + _PATIENCE_S
        while not note.exists():
            if start_ticks(pid) is None:
                raise LiveError(f"process {pid} ended meanwhile")
            if time.monotonic() > deadline:
                raise LiveError(
                    f"process {pid} took the code but did not run it within {_PATIENCE_S:g} s",
                    hint=f"it may sit in C: `stethos {pid} backtrace` shows where",
                )
            time.sleep(_LOOK_S)
        said = note.read_text(encoding="utf-8")
    if said not in ("ok", "recording already"):
        raise LiveError(f"process {pid} does not record: {said}")


def _arrived(pid: int) -> LiveProcess:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        process = live_process(pid)
        if process is not None and process.has_agent:
            return process
        time.sleep(_LOOK_S)
    raise LiveError(f"process {pid} records, but its agent cannot be found", hint="are both in the same container?")


# The rungs ----------------------------------------------------------------------------------------------------


def _remote_exec_closed(pid: int) -> str:
    if not hasattr(sys, "remote_exec"):
        return "this Python is older than 3.14"
    theirs = python_version_of(pid)
    if theirs is not None and theirs != sys.version_info[:2]:
        return f"it runs Python {theirs[0]}.{theirs[1]}, this is {sys.version_info[0]}.{sys.version_info[1]}"
    return _forbidden(pid)


def _remote_exec(pid: int, code: str, is_forced: bool) -> None:
    descriptor, name = tempfile.mkstemp(prefix="stethos-attach-", suffix=".py")  # read later: it stays behind
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(code + f"\nimport os\nos.unlink({name!r})\n")
    sys.remote_exec(pid, name)  # type: ignore[attr-defined]


def _hypno_closed(pid: int) -> str:
    if importlib.util.find_spec("hypno") is None:
        return 'hypno is not installed (pip install "stethos[attach]")'
    return _forbidden(pid)


def _hypno(pid: int, code: str, is_forced: bool) -> None:
    from stethos.live.injection import inject_safely

    inject_safely(pid, code, is_forced)


RUNGS = (
    AttachMethod("sys.remote_exec", _remote_exec_closed, _remote_exec),
    AttachMethod("hypno", _hypno_closed, _hypno),
)


def _forbidden(pid: int) -> str:
    """Why the system does not let us into the process; empty if it does."""
    owner = owner_of(pid)
    if owner != os.geteuid() and not has_ptrace():
        return f"it belongs to uid {owner}"
    scope = ptrace_scope()
    if scope and not has_ptrace():
        return f"kernel.yama.ptrace_scope is {scope}"
    return ""


def _remedy(pid: int) -> str:
    if importlib.util.find_spec("hypno") is None and not hasattr(sys, "remote_exec"):
        return 'install the injector: pip install "stethos[attach]"'
    return why_not_readable(pid) if _forbidden(pid) else "start it with `stethos run` instead"


def is_python(pid: int) -> bool:
    """Whether a process has an interpreter in it; True where that cannot be seen."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
        executable = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return True
    return "python" in Path(executable).name or "libpython" in maps


def python_version_of(pid: int) -> tuple[int, int] | None:
    """The version of a process's interpreter, from its files; None if they do not say."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
        text = f"{os.readlink(f'/proc/{pid}/exe')}\n{maps}"  # a line each: the maps begin with digits
    except OSError:
        return None
    match = re.search(r"python(\d)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None
