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
from stethos.store import limit
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
                run.sql(sql, timeout_s=300)  # memory ends it, however slow the machine is
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


NEWER = ("", "max", "current", "inactive_file")
OLDER = ("memory", "limit_in_bytes", "usage_in_bytes", "total_inactive_file")


@pytest.mark.parametrize(
    ("line", "names", "left"),
    [
        ("0::/", NEWER, 1 << 30), ("0::/a.slice/b.scope", NEWER, 600 << 20), ("0::/../elsewhere", NEWER, 1 << 30),
        ("4:memory:/not/seen/from/here", OLDER, 1 << 30), ("4:memory:/a.slice/b.scope", OLDER, 600 << 20),
    ],
)  # fmt: skip
def test_a_container_that_is_nearly_full_leaves_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, names: tuple[str, ...], left: int
) -> None:
    """Whatever the machine has free: the container's training would be killed."""
    top, most, now, cached = names
    for place, used in (("", (3 << 30) + (1 << 20)), ("a.slice/b.scope", (4 << 30) - (600 << 20) + (1 << 20))):
        group = tmp_path / top / place
        group.mkdir(parents=True, exist_ok=True)
        for name, told in ((most, 4 << 30), (now, used), ("stat", f"anon 1\n{cached} {1 << 20}")):
            (group / f"memory.{name}").write_text(f"{told}\n", encoding="ascii")
    (tmp_path / "own").write_text(f"1:name=systemd:/x\n{line}\n", encoding="ascii")
    monkeypatch.setattr(limit, "_CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(limit, "_OWN_GROUP", tmp_path / "own")
    assert limit.memory_bytes() == left // 2
