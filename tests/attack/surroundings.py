"""A program is recorded and read where something is odd: umask, paths, limits, home, another user."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import environment

from attack.outcome import Outcome, place

PROGRAM = """
import stethos, os, sys
watch = stethos.watch(dir='runs', name='here')
for i in range(50):
    stethos.log(i=i)
print(watch.path)
"""
READ = (
    "import sys, stethos\n"
    "with stethos.open_run('runs/here') as run:\n"
    "    print(run.rows('SELECT count(*) FROM metrics').values[0][0])\n"
)
OTHER_USER = 12345


def odd_names() -> list[str]:
    return [
        "plain", "with space", "line\nend", "tab\there", "quote'\"", "glob*[a]?", "back\\slash", "ünïcödé",
        "-dash", "$(x)", "`y`", "%41", "a" * 200, "..dots", "#hash", "semi;colon",
    ]  # fmt: skip


def attack(tries: int, seed: int = 1) -> Outcome:
    outcome = Outcome(
        "odd surroundings",
        "the program runs to its end; what is recorded can be read; all of it is the user's alone",
    )
    for what, options in _cases()[:tries]:
        outcome.tries += 1
        with place() as base:
            base.chmod(0o755)
            _record(outcome, what, base / options.pop("name", "here"), **options)
    return outcome


def _cases() -> list[tuple[str, dict[str, Any]]]:
    masks = (0o000, 0o777, 0o002, 0o022, 0o077, 0o027)
    cases: list[tuple[str, dict[str, Any]]] = [(f"umask {mask:03o}", {"mask": mask}) for mask in masks]
    if shutil.which("setpriv") and os.geteuid() == 0:
        cases += [(f"umask {mask:03o} as another user", {"mask": mask, "user": OTHER_USER}) for mask in masks]
    cases += [(f"path {name!r}", {"name": name}) for name in odd_names()]
    cases.append(("a path that is not UTF-8", {"name": "\udcff\udcfe", "may_fail": True}))
    cases += [(f"{count} open files", {"limit": (resource.RLIMIT_NOFILE, count)}) for count in (64, 32, 16, 12, 10, 8)]
    cases += [
        ("no home", {"variables": {"HOME": "", "XDG_CONFIG_HOME": ""}}),
        ("a home that cannot be written", {"variables": {"HOME": "/proc"}}),
        ("files of 64 kB at most", {"limit": (resource.RLIMIT_FSIZE, 1 << 16), "may_fail": True}),
    ]
    return cases


def _record(
    outcome: Outcome,
    what: str,
    directory: Path,
    mask: int = 0o022,
    user: int | None = None,
    limit: tuple[int, int] | None = None,
    variables: dict[str, str] | None = None,
    may_fail: bool = False,
) -> None:
    directory.mkdir()
    if user is not None:
        os.chown(directory, user, user)

    def set_up(*, is_limited: bool) -> Callable[[], None]:
        def inside() -> None:
            if limit is not None and is_limited:
                resource.setrlimit(limit[0], (limit[1], limit[1]))
            os.umask(mask)

        return inside

    # Another user may read where this interpreter lies, and nothing else.
    words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all,+dac_read_search",
             "--ambient-caps=-all,+dac_read_search", "--bounding-set=-all,+dac_read_search"]  # fmt: skip
    before = words if user is not None else []
    around = environment(**{"HOME": str(directory), **(variables or {})})
    options: dict[str, Any] = {"cwd": directory, "env": around, "capture_output": True, "text": True, "timeout": 120}
    told = subprocess.run(
        [*before, sys.executable, "-c", PROGRAM], errors="replace", preexec_fn=set_up(is_limited=True), check=False,
        **options,
    )  # fmt: skip
    is_recorded = "not recording" not in told.stderr
    outcome.check(told.returncode == 0, f"{what}: the program ended with {told.returncode}: {told.stderr[-300:]}")
    if is_recorded and not may_fail and told.returncode == 0:
        read = subprocess.run(
            [*before, sys.executable, "-c", READ], errors="replace", preexec_fn=set_up(is_limited=False), check=False,
            **options,
        )  # fmt: skip
        outcome.check(read.stdout == "50\n", f"{what}: {read.stdout!r} {read.stderr[-300:]}")
    for root, directories, files in os.walk(directory / "runs"):
        for name in (*directories, *files, "."):
            mode = stat.S_IMODE(os.lstat(os.path.join(root, name)).st_mode)
            is_private = not mode & 0o077
            outcome.check(is_private, f"{what}: {name} has mode {mode:o}")
    shutil.rmtree(directory / "runs", ignore_errors=True)
