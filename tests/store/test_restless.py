"""Reading while a writer does everything at once: seals, retires, makes the file of the findings."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import SOURCE, environment, finish, start_program

from stethos.store.findings import FILE, read_findings
from stethos.store.run import open_run

TURNS = 25
QUERIES = (
    "SELECT count(*), max(step) FROM steps",
    "SELECT name, max(value) FROM metrics GROUP BY name",
    "SELECT layer, max(step) FROM layers GROUP BY layer",
    "SELECT sum(rows_stored) FROM processes",
)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that writes without a pause; it has said its first line."""
    paths = os.pathsep.join([str(SOURCE), str(Path(__file__).resolve().parents[1])])
    program = start_program("restless.py", tmp_path, env=environment(PYTHONPATH=paths))
    assert program.stdout is not None and program.stdout.readline() == "1\n"
    yield program
    ended = finish(program, "")
    assert ended.returncode == 0, ended.stderr


def test_no_query_fails_because_of_what_a_writer_does_meanwhile(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    with open_run(tmp_path / "sealed") as run:
        while not (tmp_path / f"found-{TURNS}").exists():
            for sql in QUERIES:
                assert run.rows(sql).values
            assert writer.poll() is None


def test_findings_kept_for_the_first_time_can_be_read_or_are_not_there(
    tmp_path: Path, writer: subprocess.Popen[str]
) -> None:
    assert writer.stdout is not None
    for line in writer.stdout:
        found = tmp_path / f"found-{line.strip()}"
        is_there = False
        while not is_there:
            is_there = (found / FILE).exists()
            assert read_findings(found) == []
        if int(line) >= TURNS:
            break
