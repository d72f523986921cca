"""Every call that a drainer makes on the files of a run fails once with every error, or from then on.

A library that is preloaded (`fault.c`) does it, so that calls made inside Arrow, SQLite and Python itself fail too. A
process with the library imports all there is, and forks a drainer for each fault.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path

from builders import RunBuilder
from processes import environment

from attack.outcome import Outcome, place
from stethos.record.drainer import Drainer
from stethos.record.place import RunPlace
from stethos.store.run import Run

ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EROFS, errno.ENOMEM,
          errno.EPERM, errno.ESTALE, errno.EFBIG, errno.EBUSY, errno.ENOENT, errno.EINTR, errno.EAGAIN)  # fmt: skip
PASSING = (errno.EINTR, errno.EAGAIN)  # which no kernel says for ever
KINDS = ("open", "read", "write", "truncate", "sync", "rename", "unlink", "stat", "list", "map", "lock", "mode",
         "make", "space")  # fmt: skip
FOREVER = 1 << 30
ROWS = 12
LONGEST_S = 20


def attack(tries: int, seed: int = 1) -> Outcome:
    outcome = Outcome(
        "a system call of the drainer fails",
        "no error ends the drainer; when calls succeed again every row is there once",
    )
    with place() as base:
        library = built_library(base)
        around = environment(LD_PRELOAD=str(library), PYTHONPATH=os.pathsep.join(map(str, sys.path)))
        words = [sys.executable, "-m", "attack.faults", str(tries), str(seed), str(base)]
        told = subprocess.run(words, env=around, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[1])
    found = json.loads(told.stdout.splitlines()[-1])
    outcome.tries, outcome.failures, outcome.notes = found["tries"], found["failures"], found["notes"]
    return outcome


def built_library(directory: Path) -> Path:
    """`fault.c`, to be preloaded."""
    library = directory / "fault.so"
    source = Path(__file__).with_name("fault.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", library, source, "-ldl"], check=True)
    return library


def main(tries: int, seed: int, base: Path) -> None:
    """Inside the process that has the library."""
    library = ctypes.CDLL(None)
    outcome = Outcome("", "")
    library.fault_watch(os.fsencode(base / "run"))
    counts = _counts(library, base)
    outcome.notes = {f"calls of {kind}": count for kind, count in counts.items() if count}
    plan = [
        (kind, at, length, error)
        for kind, count in counts.items() for at in range(count) for error in ERRORS for length in (1, FOREVER)
        if length == 1 or error not in PASSING
    ]  # fmt: skip
    outcome.notes["ways"] = len(plan)
    random.Random(0).shuffle(plan)  # the same order in every process, each of which takes a piece of it
    for kind, at, length, error in plan[(seed - 1) * tries : seed * tries]:
        outcome.tries += 1
        what = f"{kind} {at} {errno.errorcode[error]} x{length}"
        with RunBuilder(base / "run") as run:
            _fill(run)
            told = _drained(library, run.place, (KINDS.index(kind), at, length, error))
            outcome.check(told == "", f"{what}: {told}")
            second = Drainer(run.place)  # as the next one would, now that nothing fails
            for turn in range(3):
                second.visit(time.monotonic() + turn)
            _check(outcome, run.place, what)
        shutil.rmtree(base / "run")
    print(json.dumps({"tries": outcome.tries, "failures": outcome.failures, "notes": outcome.notes}))


def _fill(run: RunBuilder) -> None:
    process = run.process("100-200", is_alive=False)
    process.steps(ROWS)
    process.layers(["a", "b"], step=1)
    process.log("message")


def _counts(library: ctypes.CDLL, base: Path) -> dict[str, int]:
    """How often a drainer that nothing happens to makes calls of each kind."""
    with RunBuilder(base / "run") as run:
        _fill(run)
        told = _drained(library, run.place, (-1, 0, 0, 0), is_counting=True)
    shutil.rmtree(base / "run")
    return dict(zip(KINDS, json.loads(told), strict=True))


def _drained(
    library: ctypes.CDLL, run: RunPlace, fault: tuple[int, int, int, int], *, is_counting: bool = False
) -> str:
    """Have a forked drainer work; what ended it, if not itself."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        told = ""
        resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_S, LONGEST_S))
        try:
            library.fault_arm(fault[0], ctypes.c_long(fault[1]), ctypes.c_long(fault[2]), fault[3])
            drainer = Drainer(run)
            now = time.monotonic()
            for turn in range(3):
                drainer.visit(now + turn)
            if is_counting:
                told = json.dumps([library.fault_count(kind) for kind in range(len(KINDS))])
        except BaseException as error:
            told = f"{error!r} {traceback.format_exc()[-700:]}"
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        told = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return told if status == 0 else f"ended with {status}"


def _check(outcome: Outcome, place: RunPlace, what: str) -> None:
    opened = Run(place)
    try:
        summary = opened.summary()
        steps = [step for (step,) in opened.rows("SELECT step FROM steps ORDER BY step").values]
        outcome.check(steps == list(range(ROWS)), f"{what}: steps {steps}")
        outcome.check(summary["rows"]["layers"] == 2 and summary["rows"]["logs"] == 1, f"{what}: {summary['rows']}")
        balance = summary["rows_stored"] + summary["rows_dropped"] + summary["rows_lost"]
        outcome.check(summary["rows_produced"] == balance and not summary["rows_lost"], f"{what}: {summary}")
    finally:
        opened.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
