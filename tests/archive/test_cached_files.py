"""What is kept of archives on this machine: never more than the bound, never of another snapshot."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import RunBuilder

import stethos
from stethos.archive.address import parse_address
from stethos.archive.cached_files import cache_root, room_for
from stethos.archive.committer import archive_run
from stethos.archive.maintain import compact_run
from stethos.errors import ArchiveError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory on another file system, from which nothing can be linked."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


def archived(runs: Path, name: str, archive: Path, steps: int = 20) -> Path:
    with RunBuilder(runs / name) as run:
        process = run.process("p0", is_alive=False)
        process.steps(steps)
        process.seal()
        process.metric("accuracy", 0.5)
        process.finish()
        archive_run(run.place, parse_address(archive))
    return archive / name


def count_in(target: Path, table: str = "steps") -> int:
    with stethos.open_run(str(target)) as run:
        return int(run.rows(f"SELECT count(*) FROM {table}").values[0][0])


def kept_bytes(pattern: str = "*") -> int:
    return sum(path.stat().st_size for path in cache_root().rglob(pattern) if path.is_file() and path.name != "size")


def test_files_of_an_archive_on_another_file_system_count(
    runs_dir: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [archived(runs_dir, name, elsewhere) for name in ("one", "two", "three")]
    largest = max(path.stat().st_size for path in elsewhere.rglob("steps/*.parquet"))
    count_in(targets[0])
    small = kept_bytes() - kept_bytes("*.parquet")
    most = 4 * small + largest + 100
    monkeypatch.setenv("STETHOS_CACHE_BYTES", str(most))
    for target in targets:
        assert count_in(target) == 20 and kept_bytes() <= most
    over = "SELECT count(*) AS n FROM steps"
    monkeypatch.setenv("STETHOS_CACHE_BYTES", str(2 * largest))
    with pytest.raises(ArchiveError, match="the cache holds"):
        stethos.archive(elsewhere).sql(over)
    monkeypatch.setenv("STETHOS_CACHE_BYTES", "1GB")
    assert stethos.archive(elsewhere).sql(over).to_pylist() == [{"n": 60}]


def test_the_small_files_of_runs_count(runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = [archived(runs_dir, f"run-{number}", tmp_path / "a") for number in range(8)]
    count_in(targets[0])
    one = kept_bytes() - kept_bytes("*.parquet")
    monkeypatch.setenv("STETHOS_CACHE_BYTES", str(4 * one))
    for target in targets:
        count_in(target)
        assert kept_bytes() - kept_bytes("*.parquet") <= 4 * one
    assert not (cache_root() / next(cache_root().glob("*/run-7")).parent.name / "run-0").exists()
    assert count_in(targets[0]) == 20


_FETCHES = "import sys, time; from stethos.archive.cached_files import room_for\n"
_FETCHES += "with room_for(int(sys.argv[1]), set()): print('has room', flush=True); time.sleep(600)"


def test_what_others_are_fetching_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STETHOS_CACHE_BYTES", "1000")
    with subprocess.Popen([sys.executable, "-c", _FETCHES, "600"], stdout=subprocess.PIPE, env=os.environ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"has room\n"
        with pytest.raises(ArchiveError, match="others are fetching 600"), room_for(600, set()):
            pass
        with room_for(300, set()):
            pass
        child.kill()
    with room_for(900, set()):  # what a killed process was about to fetch will not come
        pass
    assert not list(cache_root().glob("reserved-*"))


def test_what_a_killed_fetch_has_left_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = cache_root() / "key" / "run" / "steps" / ".p0.parquet.123"
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(100))
    os.utime(left, (time.time() - 7200, time.time() - 7200))
    monkeypatch.setenv("STETHOS_CACHE_BYTES", "50")
    with room_for(50, set()):
        assert not left.exists()


def test_a_run_that_is_open_follows_what_another_command_has_brought_up_to_date(
    run: RunBuilder, tmp_path: Path
) -> None:
    process = run.process("p0", is_alive=False)
    process.steps(5)
    process.seal()
    archive = parse_address(tmp_path / "a")
    archive_run(run.place, archive)
    with stethos.open_run(str(tmp_path / "a" / "demo")) as server:
        assert server.rows("SELECT count(*) FROM steps").values == [(5,)]
        for _ in range(2):
            process.steps(5)
            process.seal()
        process.finish()
        archive_run(run.place, archive)
        assert count_in(tmp_path / "a" / "demo", "metrics") == 0  # another command, which fetches no steps
        assert server.rows("SELECT count(*) FROM steps").values == [(15,)]
        assert server.summary()["rows_lost"] == 0
        compact_run(archive / "demo")
        assert count_in(tmp_path / "a" / "demo", "metrics") == 0
        assert server.rows("SELECT count(*) FROM steps").values == [(15,)]
