"""The watchdog on a real training: what is only slow it leaves alone, what hangs it names."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import DEADLINE_S, PROGRAMS, environment, start_command, wait_for_rest, wait_until

from stethos.diagnose.api import diagnose
from stethos.live.registry import live_processes
from stethos.store.run import open_run

PATIENCE_S = DEADLINE_S
CAUSES = {"loader": "data-loader", "lock": "lock", "gil": "gil", "client": "client", "program": "disk"}


def leased_program(directory: Path) -> int:
    """A program that nobody can start as long as the file is open here (and for 45 s at most)."""
    program = shutil.copy("/bin/true", directory / "program")
    descriptor = os.open(program, os.O_RDWR | os.O_CLOEXEC)
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # by which the kernel asks for the lease back
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return descriptor


class Hanging:
    """A training that stands still until it is let go."""

    def __init__(self, directory: Path) -> None:
        self.run = directory / "runs" / "hanging"
        self.errors = directory / "stderr"
        self._program = leased_program(directory)
        with self.errors.open("w", encoding="utf-8") as stderr:
            self.process: subprocess.Popen[str] = start_command(
                "run", "--dir", directory / "runs", "--name", "hanging", "--hang-after", "1.5",
                PROGRAMS / "hanging.py", directory, stderr=stderr, env=environment(XDG_RUNTIME_DIR=str(directory)),
            )  # fmt: skip

    def hears(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def let_go(self, name: str = "") -> None:
        if name == "program":
            os.close(self._program)  # and with it the lease
            return
        assert self.process.stdin is not None
        self.process.stdin.write("x")
        self.process.stdin.flush()

    def hangs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for path in self.run.glob("hang-*.json"):
            found += json.loads(path.read_text(encoding="utf-8"))["hangs"]
        return found


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything that happens, in order; each hang is let go when it was told, and over when that was."""
    directory = tmp_path_factory.mktemp("hangs")
    training = Hanging(directory)
    told: dict[str, Any] = {}
    try:
        assert training.hears() == "slow", training.errors.read_text(encoding="utf-8")
        told["while slow"] = training.hangs()
        training.let_go()
        for number, name in enumerate(CAUSES, start=1 + len(told["while slow"])):
            assert training.hears() == name
            wait_until(lambda number=number: len(training.hangs()) >= number, f"the hang {name}", PATIENCE_S)
            told[name] = training.hangs()[-1]
            training.let_go(name)
            wait_until(lambda: training.hangs()[-1]["is_over"], f"the end of {name}", PATIENCE_S)
        assert training.hears() == "end"
        assert training.process.wait(PATIENCE_S) == 0
    finally:
        training.process.kill()
        training.process.communicate()
    wait_for_rest(training.run)
    return {**told, "run": training.run, "stderr": training.errors.read_text(encoding="utf-8")}


def test_evaluation_computing_and_a_checkpoint_are_no_hang(story: dict[str, Any]) -> None:
    assert story["while slow"] == []


def test_a_stalled_data_loader_is_named(story: dict[str, Any]) -> None:
    assert "waits for its data loader in Rows.__getitem__ (hanging.py:" in story["loader"]["title"]


def test_a_lock_is_named(story: dict[str, Any]) -> None:
    assert "waits for a lock or another thread in wait_for_lock (hanging.py:" in story["lock"]["title"]
    assert re.match(r"process [0-9]+ hangs: it ", story["lock"]["title"])  # a pid, by which commands know it


def test_c_code_that_holds_the_gil_is_named(story: dict[str, Any]) -> None:
    assert "holds the GIL, called by hold_gil (hanging.py:" in story["gil"]["title"]


def test_a_client_that_does_not_answer_is_named(story: dict[str, Any]) -> None:
    assert "waits for client c3, in wait_for_client (hanging.py:" in story["client"]["title"]


def test_a_wait_for_the_disk_that_nothing_interrupts_is_named(story: dict[str, Any]) -> None:
    """The thread is in the kernel's state D, and holds the GIL."""
    assert "waits for the disk in start_program (hanging.py:" in story["program"]["title"]
    assert "(start of a program)" in story["program"]["title"]


def test_stethos_run_says_so_when_it_happens_and_when_it_is_over(story: dict[str, Any]) -> None:
    assert story["stderr"].count("stethos: hang ") >= 5  # the last end may come too late to be said
    assert f"stethos: hang 1: {story['loader']['title']}" in story["stderr"]
    assert "stethos: hang 1 is over: the training goes on" in story["stderr"]


def test_hangs_are_kept_as_rows_stacks_and_findings(story: dict[str, Any]) -> None:
    with open_run(story["run"]) as run:
        causes = [cause for (cause,) in run.rows("SELECT cause FROM hangs ORDER BY hang").values]
        assert causes == list(CAUSES.values())
        frames = run.rows("SELECT func FROM stacks WHERE reason = 'hang 3' AND thread = 'MainThread' AND depth = 0")
        assert frames.values == [("hold_gil",)]
        kept = run.rows("SELECT kind, state FROM findings WHERE code = 'SYS016' ORDER BY finding").values
        assert kept == [(cause, "closed") for cause in causes]


def test_a_later_diagnosis_finds_the_same_hangs_closed(story: dict[str, Any]) -> None:
    found = [one for one in diagnose(story["run"]).findings if one.code == "SYS016"]
    assert {one.kind for one in found} == set(CAUSES.values())
    assert not any(one.is_open for one in found)


def test_ranks_that_wait_for_each_other_are_named_together(tmp_path: Path) -> None:
    torchrun = [Path(sys.executable).with_name("torchrun"), "--nproc-per-node", "2", "--standalone"]
    job = start_command(
        "run", "--dir", tmp_path / "runs", "--name", "both", "--hang-after", "2", *torchrun,
        PROGRAMS / "two_receives.py", env=environment(), stderr=subprocess.PIPE,
    )  # fmt: skip
    run = tmp_path / "runs" / "both"
    try:
        wait_until(lambda: any(run.glob("hang-*.json")), "the hang", PATIENCE_S)
        (told,) = json.loads(next(run.glob("hang-*.json")).read_text(encoding="utf-8"))["hangs"]
    finally:
        for process in live_processes(run):
            with contextlib.suppress(ProcessLookupError):  # torchrun ends the others when one is gone
                os.kill(process.pid, signal.SIGKILL)
        job.kill()
        job.communicate()
    assert told["title"].startswith("ranks 0, 1 wait for each other: rank 0 waits in `recv` for another rank, in")
