"""A query ends with an error where it wants too much memory or time: from Python, and as a command."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from builders import RunBuilder

import stethos
from stethos.errors import QueryError
from stethos.store.limit import memory_bytes

MEMORY = ("SELECT list_sum(range(1000000000))", "SELECT length(string_agg(repeat('x', 1000000))) FROM range(30000)")
STUCK = "SELECT length(repeat('x', 1000000000))"  # hears no interrupt


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with RunBuilder(tmp_path / "runs" / "run") as run:
        process = run.process()
        process.steps(7)
        process.finish()
        yield run.path


def askers(path: Path) -> set[int]:
    """Those of this run: other tests have some at the same time."""
    found = psutil.process_iter(["pid", "cmdline"])
    return {
        one.pid
        for one in found
        if "store.asker" in (line := " ".join(one.info["cmdline"] or ())) and str(path.resolve()) in line
    }


def test_from_python_a_greedy_query_is_an_error_and_the_next_one_is_answered(path: Path) -> None:
    before = askers(path)
    with stethos.open_run(path) as run:
        for sql in MEMORY:
            with pytest.raises(QueryError, match="memory"):
                run.sql(sql)
        with pytest.raises(QueryError, match="did not stop"):
            run.sql(STUCK, timeout_s=1)
        assert run.sql("SELECT count(*) AS n FROM steps").to_pylist() == [{"n": 7}]
        with pytest.raises(QueryError, match="no column 'nonsense'"):
            run.sql("SELECT nonsense FROM steps")
        with pytest.raises(QueryError, match="UTF-8"):
            run.sql("SELECT '\udcff'")
        assert len(askers(path) - before) == 1
    wait_until_gone(path, before)


def test_a_run_that_is_forgotten_takes_its_process_with_it(path: Path) -> None:
    before = askers(path)
    run = stethos.open_run(path)
    run.sql("SELECT 1")
    del run
    gc.collect()
    wait_until_gone(path, before)


def wait_until_gone(path: Path, before: set[int]) -> None:
    deadline = time.monotonic() + 30
    while askers(path) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not askers(path) - before


@pytest.mark.parametrize("sql", [*MEMORY, STUCK])
def test_as_a_command_it_ends_with_an_error(path: Path, sql: str) -> None:
    words = [sys.executable, "-m", "stethos.cli.main", "-t", str(path), "query", "--timeout", "2", sql]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == QueryError.exit_code and "Traceback" not in done.stderr
    assert "memory" in done.stderr or "did not stop" in done.stderr or "took longer" in done.stderr


def test_the_limit_leaves_most_of_the_machine_to_the_training() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 256 << 20 <= memory_bytes() <= max(256 << 20, total // 4)
