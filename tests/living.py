"""A live training under `stethos run`, and commands about it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from processes import DEADLINE_S, PROGRAMS, environment, start_command, wait_until

from stethos.cli.main import main
from stethos.live.registry import LiveProcess, live_processes
from stethos.live.target import steps_of


class Said(NamedTuple):
    status: int
    out: str
    err: str


class Living:
    """`programs/live_training.py`; its commands run in this process, which is quicker and just as true."""

    def __init__(self, kind: str, directory: Path, *words: str, **variables: str) -> None:
        self.kind = kind
        self.directory = directory
        self.runs = directory / "runs"
        self.runtime = directory / "runtime"
        self.runtime.mkdir(mode=0o700)
        self.variables = {"XDG_RUNTIME_DIR": str(self.runtime), "STETHOS_DIR": str(self.runs), **variables}
        self._log = (directory / "log").open("w")
        self.launcher = start_command(
            "run", "--quiet", "--name", kind, PROGRAMS / "live_training.py", kind, directory, *words,
            env=environment(**self.variables), cwd=directory, stdin=subprocess.DEVNULL, stdout=self._log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def process(self) -> LiveProcess:
        """The training itself."""
        (found,) = self.all_processes()
        return found

    def all_processes(self) -> list[LiveProcess]:
        before = {name: os.environ.get(name) for name in self.variables}
        os.environ.update(self.variables)
        try:
            return live_processes()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def steps(self) -> int:
        processes = self.all_processes()
        return steps_of(processes[0]) if processes else 0

    def wait_for_steps(self, more: int) -> None:
        """Wait until it has come that many steps further."""

        def has_failed() -> bool:
            return self.launcher.poll() is not None

        first = self.steps()
        wait_until(lambda: has_failed() or self.steps() >= first + more, f"{more} steps of {self.kind}")
        assert not has_failed(), (self.directory / "log").read_text()

    def say(self, *words: str | Path, stdin: str | None = None) -> Said:
        """Run a command about it."""
        before = {name: os.environ.get(name) for name in self.variables}
        place, standard_input = Path.cwd(), sys.stdin
        os.environ.update(self.variables)
        os.chdir(self.directory)
        out, err = io.StringIO(), io.StringIO()
        try:
            if stdin is not None:
                sys.stdin = io.StringIO(stdin)
            with redirect_stdout(out), redirect_stderr(err):
                status = main([str(word) for word in words])
        finally:
            sys.stdin = standard_input
            os.chdir(place)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        return Said(status, out.getvalue(), err.getvalue())

    def ok(self, *words: str | Path, stdin: str | None = None) -> str:
        """What a command says that succeeds."""
        said = self.say(*words, stdin=stdin)
        assert said.status == 0, said
        return said.out

    def rows(self, sql: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.ok("query", sql, "--json"))
        return found

    def value(self, code: str) -> str:
        """What an expression in the training is."""
        return self.ok("eval", code).strip()

    def close(self) -> str:
        """Let it end; what it printed."""
        (self.directory / "stall").unlink(missing_ok=True)
        (self.directory / "stop").touch()
        try:
            self.launcher.wait(DEADLINE_S)
        finally:
            self.launcher.kill()
            self.launcher.wait()
            self._log.close()
        return (self.directory / "log").read_text()
