"""Signs of life of real federations in processes of their own, and the leg that stands still."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from processes import environment, wait_until

from stethos.diagnose.api import diagnose
from stethos.diagnose.finding import Finding
from stethos.errors import StethosError
from stethos.store.run import open_run

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "stalls" / "apps" / "plain.py"
SOON = {"FED017": {"at_least_s": 6.0}}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    """Start the federation with something planted in its first round; what was started ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(kind: str) -> subprocess.Popen[bytes]:
        number = 4 if kind == "server-stop" else 1  # a server gives its first sign of life after a second
        settings = json.dumps({"dir": str(tmp_path), "kind": kind, "round": number})
        words = [sys.executable, str(PROGRAM), settings]
        started.append(subprocess.Popen(words, cwd=tmp_path, env=environment(), start_new_session=True))
        return started[-1]

    yield begin
    for process in started:
        for number in (signal.SIGCONT, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        process.wait()


def stall(run: Path) -> Finding | None:
    with suppress(StethosError):
        findings = list(diagnose(run, thresholds=SOON).findings)
        for one in findings:
            findings += one.consequences
        return next((one for one in findings if one.code == "FED017"), None)
    return None


@pytest.mark.parametrize(
    ("kind", "leg"),
    [("drop", "download"), ("client-stop", "compute"), ("lost-reply", "upload"), ("server-stop", "server")],
)
def test_the_leg_that_stands_still_is_named(start, tmp_path: Path, kind: str, leg: str) -> None:  # type: ignore[no-untyped-def]
    start(kind)
    found = wait_until(lambda: stall(tmp_path / "run"), f"a finding about {kind}")
    assert found.kind == leg and found.subject.clients in (("c1",), ())
    assert found.subject.clients == (("c1",) if leg != "server" else ())


def test_a_federation_that_ends_says_so_and_is_not_accused(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert start("nothing").wait(120) == 0
    assert stall(tmp_path / "run") is None
    with open_run(tmp_path / "run") as run:
        said = run.rows("SELECT DISTINCT side, leg FROM legs WHERE leg <> 'computing' AND side = 'client'").values
        assert sorted(map(tuple, said)) == [("client", "received"), ("client", "replied")]
        digests = run.rows(
            "SELECT round, count(*), count(DISTINCT digest) FROM legs WHERE digest <> '' GROUP BY 1 ORDER BY 1"
        )
        assert [tuple(row) for row in digests.values] == [(1, 2, 1), (2, 2, 1)]  # both got the same model
        last = run.rows("SELECT leg FROM legs WHERE side = 'server' ORDER BY t_ns DESC LIMIT 1").values
        assert [tuple(row) for row in last] == [("closed",)]
