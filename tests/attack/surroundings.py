"""A program is recorded and read where something is odd: umask, paths, limits, home, another user."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import environment

from attack.faults import KINDS, built_library
from attack.outcome import Outcome, place

PROGRAM = """
import stethos, os, sys
watch = stethos.watch(dir='runs', name='here')
for i in range(50):
    stethos.log(i=i)
print(watch.path)
"""
READ = """
import stethos
from stethos.errors import StethosError
try:
    with stethos.open_run('runs/here') as run:
        books = run.summary()
        print(run.rows('SELECT count(*) FROM metrics').values[0][0])
        assert books['rows_produced'] == books['rows_stored'] + books['rows_dropped'] + books['rows_lost'], books
except StethosError as error:
    print('refused:', error)
"""
ROWS = "50\n"
FOREVER = 1 << 30
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
    with place() as base:
        library = built_library(base)
        for number, (what, options) in enumerate(_cases(library)[:tries]):
            outcome.tries += 1
            directory = base / str(number)
            directory.mkdir()
            base.chmod(0o755)
            with mounted(directory, options.pop("mount", "")):
                _record(outcome, what, directory / options.pop("name", "here"), **options)
    return outcome


@contextmanager
def mounted(directory: Path, options: str) -> Iterator[None]:
    """A small file system there, if `options` say how small."""
    if options:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", directory], check=True)
    try:
        yield
    finally:
        if options:
            subprocess.run(["umount", "--lazy", directory], check=True)


def _can_mount() -> bool:
    with place() as base:
        words = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", base]
        if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
            return False
        return subprocess.run(["umount", base], check=False).returncode == 0


def _failing(library: Path, kind: str, first: int, error: int) -> dict[str, Any]:
    """A program for which every call of a kind on files of its run fails from the Nth on; the reader's do not."""
    how = f"{KINDS.index(kind)} {first} {FOREVER} {error}"
    return {"inside": {"LD_PRELOAD": str(library), "FAULT": how, "FAULT_BELOW": "runs"}, "may_lose": True}


def _narrow_cases(library: Path) -> list[tuple[str, dict[str, Any]]]:
    """Files cannot be mapped, made or held in memory."""
    cases: list[tuple[str, dict[str, Any]]] = [
        ("a file system without mmap", {**_failing(library, "map", 0, errno.ENODEV), "may_lose": False})
    ]
    for megabytes in (4096, 1024, 512, 256, 192, 128, 96):
        limit = (resource.RLIMIT_AS, megabytes << 20)
        cases.append((f"{megabytes} MB of address space", {"limit": limit, "may_lose": True}))
    cases += [
        (f"no file is opened after the {first}th", _failing(library, "open", first, errno.ENOSPC))
        for first in (0, 1, 2, 4, 8, 16, 32)
    ]
    cases += [(f"no directory is made after the {n}th", _failing(library, "make", n, errno.ENOSPC)) for n in (0, 1, 2)]
    if _can_mount():
        cases += [(f"{n} inodes", {"mount": f"size=64M,nr_inodes={n}", "may_lose": True}) for n in range(3, 16)]
        cases += [
            (f"a file system of {kilobytes} kB", {"mount": f"size={kilobytes}k", "may_lose": True})
            for kilobytes in (4, 64, 1024, 8192, 9216, 9300, 9400, 10240, 16384)
        ]
    return cases


def _cases(library: Path) -> list[tuple[str, dict[str, Any]]]:
    masks = (0o000, 0o777, 0o002, 0o022, 0o077, 0o027)
    cases = _narrow_cases(library)
    first = ("a file system without mmap", "512 MB of address space", "no file is opened after the 4th")
    cases.sort(key=lambda case: case[0] not in first)
    cases[len(first) : len(first)] = [(f"umask {mask:03o}", {"mask": mask}) for mask in masks]
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
    inside: dict[str, str] | None = None,
    may_fail: bool = False,
    may_lose: bool = False,
) -> None:
    directory.mkdir(exist_ok=True)
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
    options: dict[str, Any] = {"cwd": directory, "capture_output": True, "text": True, "timeout": 300}
    if inside and "FAULT_BELOW" in inside:
        inside = {**inside, "FAULT_BELOW": str(directory / "runs")}
    bare = subprocess.run(  # what cannot run without us need not run with us
        [*before, sys.executable, "-c", "import json, threading"], preexec_fn=set_up(is_limited=True), check=False,
        env=around, **options,
    )  # fmt: skip
    if bare.returncode:
        outcome.notes["not possible without Stethos either"] = (
            outcome.notes.get("not possible without Stethos either", 0) + 1
        )
        return
    told = subprocess.run(
        [*before, sys.executable, "-c", PROGRAM], errors="replace", preexec_fn=set_up(is_limited=True), check=False,
        env={**around, **(inside or {})}, **options,
    )  # fmt: skip
    is_recorded = "not recording" not in told.stderr
    outcome.check(told.returncode == 0, f"{what}: the program ended with {told.returncode}: {told.stderr[-300:]}")
    if is_recorded and not may_fail and told.returncode == 0:
        read = subprocess.run(
            [*before, sys.executable, "-c", READ], errors="replace", preexec_fn=set_up(is_limited=False), check=False,
            env=around, **options,
        )  # fmt: skip
        is_good = read.stdout == ROWS or (may_lose and read.returncode == 0)
        outcome.check(is_good, f"{what}: {read.stdout!r} {read.stderr[-300:]}")
        outcome.notes["all rows"] = outcome.notes.get("all rows", 0) + (read.stdout == ROWS)
    outcome.check("Traceback" not in told.stderr, f"{what}: {told.stderr[-300:]}")
    outcome.notes["not recorded, and said so"] = outcome.notes.get("not recorded, and said so", 0) + (not is_recorded)
    if os.environ.get("ATTACK_SHOWN"):
        sys.stderr.write(f"{what}: {told.returncode} {told.stderr[-200:]!r}\n")
    for root, directories, files in os.walk(directory / "runs"):
        for name in (*directories, *files, "."):
            mode = stat.S_IMODE(os.lstat(os.path.join(root, name)).st_mode)
            is_private = not mode & 0o077
            outcome.check(is_private, f"{what}: {name} has mode {mode:o}")
    shutil.rmtree(directory / "runs", ignore_errors=True)
