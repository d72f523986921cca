"""The disk is full, read-only or gone: the program runs as it would have, and every row is accounted for."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from builders import RunBuilder
from processes import (
    PROGRAMS,
    checked_books,
    collected,
    command,
    drainers_of,
    finish,
    kill_drainer,
    metric_values,
    only_process,
    start,
    start_command,
    start_program,
    wait_for_rest,
    wait_until,
)

from stethos.record.drainer import Drainer
from stethos.record.place import RunPlace
from stethos.store.health import Grade, examine
from stethos.store.run import open_run

_PR_CAPBSET_DROP = 24


class SmallDisk:
    """A file system of a few megabytes of its own."""

    def __init__(self, path: Path, size: str) -> None:
        self.path = path
        path.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={size},mode=0755", "tmpfs", path)

    def fill(self, leave_bytes: int = 0) -> None:
        """Use up all space but this, by hand and to the last byte."""
        filler = self.path / "filler"
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        if leave_bytes:
            os.truncate(filler, max(0, filler.stat().st_size - leave_bytes))

    def free(self) -> None:
        (self.path / "filler").unlink()

    def make_read_only(self) -> None:
        _mount("-o", "remount,ro", self.path)

    def remove(self) -> None:
        subprocess.run(["umount", "-l", self.path], check=True)


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Room for a ring of 9 MB and little more."""
    small = SmallDisk(tmp_path / "disk", "12m")
    yield small
    wait_until(lambda: not drainers_of(tmp_path), "the end of the drainers")
    small.remove()


def ask(program: subprocess.Popen[str], line: str) -> str:
    assert program.stdin is not None and program.stdout is not None
    program.stdin.write(line + "\n")
    program.stdin.flush()
    return program.stdout.readline()


def wait_until_drained(path: Path) -> None:
    with open_run(path) as run:
        wait_until(lambda: run.summary()["rows_waiting"] == 0, "the rows that wait")


# Full -----------------------------------------------------------------------------------------------


def test_rows_on_a_full_disk_wait_or_are_counted_and_recording_goes_on_when_space_returns(disk: SmallDisk) -> None:
    path = disk.path / "run"
    program = start_program("rows_on_demand.py", disk.path, "run")
    assert ask(program, "1000") == "1000\n"
    wait_until_drained(path)
    disk.fill()
    assert ask(program, "50000") == "51000\n"
    with open_run(path) as run:
        wait_until(lambda: run.summary()["drops"].get("ring_full"), "rows that find no room")
        checked_books(run)
    disk.free()
    wait_until_drained(path)
    assert ask(program, "1000") == "52000\n"
    assert finish(program).returncode == 0
    run, books = collected(path)
    values = metric_values(run)
    assert values[:1000] == [*range(1000)] and values[-1000:] == [*range(51_000, 52_000)]
    assert all(before < after for before, after in pairwise(values))  # the drainer may make room amid the flood
    assert books["drops"] == {"ring_full": 52_000 - len(values)} and books["rows_lost"] == 0
    assert only_process(run)["state"] == "ended"


def test_a_nearly_full_disk_is_used_to_its_last_block_and_named(disk: SmallDisk) -> None:
    path = disk.path / "run"
    program = start_program("rows_on_demand.py", disk.path, "run")
    assert ask(program, "100") == "100\n"
    wait_until_drained(path)
    disk.fill(leave_bytes=500_000)
    assert ask(program, "50000") == "50100\n"
    with open_run(path) as run:
        wait_until(lambda: run.summary()["rows_stored"] > 2000, "rows that fit")
        (found,) = [one for one in examine(run).checks if one.what == "disk"]
        assert found.grade is Grade.PROBLEM and str(path) in found.found
    disk.free()
    assert finish(program).returncode == 0
    run, _ = collected(path)
    assert any("full" in reason for (reason,) in run.rows("SELECT reason FROM gaps").values)


def test_a_full_disk_costs_layers_before_steps(disk: SmallDisk) -> None:
    with RunBuilder(disk.path / "run") as builder:
        process = builder.process("100-200", is_alive=False)
        for step in range(40):
            process.layers([f"layer {number}" for number in range(100)], step=step)
        process.seal()
        disk.fill()
        process.steps(300)
        process.close()
        drainer = Drainer(builder.place)
        for turn in range(5):
            drainer.visit(time.monotonic() + turn)
        with open_run(disk.path / "run") as run:
            assert run.rows("SELECT count(*) FROM steps").values == [(300,)]
            assert run.rows("SELECT count(*) FROM layers").values == [(0,)]
            assert run.summary()["rows_waiting"] == 0 and run.summary()["drops"] == {"size_limit": 4000}
        drainer.is_stopping = True
        drainer.serve()


def test_a_training_whose_disk_fills_up_ends_as_it_would_have(disk: SmallDisk) -> None:
    bare = finish(start_program("train_on_demand.py"), "300\n300\n300\n")
    path = disk.path / "run"
    launcher = start_command("run", "--dir", disk.path, "--name", "run", PROGRAMS / "train_on_demand.py")
    shown = ask(launcher, "300")
    wait_until_drained(path)
    disk.fill(leave_bytes=20_000)
    shown += ask(launcher, "300")
    disk.fill()
    shown += ask(launcher, "300")
    disk.free()
    ended = finish(launcher)
    assert (ended.returncode, shown + ended.stdout) == (bare.returncode, bare.stdout)
    run, books = collected(path)
    assert run.rows("SELECT count(*), count(DISTINCT step), max(step) FROM steps").values == [(900, 900, 899)]
    assert books["rows_lost"] == books["rows_dropped"] == 0
    assert only_process(run)["state"] == "ended"


def test_a_program_that_ends_on_a_full_disk_is_collected_later(disk: SmallDisk) -> None:
    path = disk.path / "run"
    launcher = start_command("run", "--dir", disk.path, "--name", "run", PROGRAMS / "rows_on_demand.py")
    assert ask(launcher, "100") == "100\n"
    wait_until_drained(path)
    disk.fill()
    assert ask(launcher, "5000") == "5100\n"
    assert finish(launcher).returncode == 0
    kill_drainer(path)
    with open_run(path) as run:  # what was stored can be read, what waits is known
        assert metric_values(run)[:100] == list(range(100))
        checked_books(run)
    disk.free()
    open_run(path).close()
    run, books = collected(path)
    assert metric_values(run) == list(range(5100))
    assert books["rows_lost"] == books["rows_dropped"] == 0


@pytest.mark.parametrize("free_bytes", [0, 100_000])
def test_a_disk_that_is_full_from_the_start_leaves_the_program_unobserved(disk: SmallDisk, free_bytes: int) -> None:
    disk.fill(leave_bytes=free_bytes)
    program = "print('result'); raise SystemExit(3)"
    ended = command("run", "--dir", disk.path, "--name", "run", sys.executable, "-c", program)
    assert (ended.returncode, ended.stdout) == (3, "result\n")
    script = disk.path.parent / "script.py"
    script.write_text(program)
    ended = command("run", "--dir", disk.path, "--name", "main", script)
    assert (ended.returncode, ended.stdout) == (3, "result\n")
    assert "stethos: not recording: " in ended.stderr and "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(disk.path.rglob("ring"))  # nothing half made is left
    assert not RunPlace(disk.path / "main").processes()


def test_watch_on_a_full_disk_says_so_and_records_nothing(disk: SmallDisk) -> None:
    disk.fill(leave_bytes=100_000)
    ended = finish(start_program("rows_on_demand.py", disk.path, "run"), "5\n5\n")
    assert (ended.returncode, ended.stdout) == (0, "5\n10\n")
    assert ended.stderr.count("stethos: not recording: ") == 1 and "Traceback" not in ended.stderr
    wait_until(lambda: not drainers_of(disk.path), "no drainer")


# Read-only, deleted -----------------------------------------------------------------------------------


def test_a_read_only_directory_leaves_the_program_unobserved(disk: SmallDisk) -> None:
    disk.make_read_only()
    ended = command("run", "--dir", disk.path, PROGRAMS / "rows_on_demand.py", stdin="5\n")
    assert (ended.returncode, ended.stdout) == (0, "5\n")
    assert "stethos: not recording: cannot record into" in ended.stderr and "Read-only file system" in ended.stderr
    ended = finish(start_program("rows_on_demand.py", disk.path, "run"), "5\n")
    assert (ended.returncode, ended.stdout) == (0, "5\n")
    assert "stethos: not recording: " in ended.stderr and "Traceback" not in ended.stderr


def obey_permissions() -> None:
    """Before a program starts: take from root what lets it overlook file modes."""
    for capability in (1, 2):  # DAC_OVERRIDE, DAC_READ_SEARCH
        assert ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


def test_permissions_taken_away_and_given_back_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    program = PROGRAMS / "rows_on_demand.py"
    launcher = start_command("run", "--dir", tmp_path, "--name", "run", program, preexec_fn=obey_permissions)
    assert ask(launcher, "100") == "100\n"
    wait_until_drained(path)
    process = RunPlace(path).processes()[0].path
    (lock,) = path.glob("drainer-*.lock")
    for one, mode in ((process, 0o500), (path, 0o500), (lock, 0)):
        one.chmod(mode)
    kill_drainer(path)
    assert ask(launcher, "5000") == "5100\n"
    seen = len(_look_at(launcher.pid))
    wait_until(lambda: len(_look_at(launcher.pid)) > seen, "the command trying to start a drainer")
    assert launcher.poll() is None
    for one, mode in ((lock, 0o600), (path, 0o700), (process, 0o700)):
        one.chmod(mode)
    wait_until(lambda: drainers_of(path), "another drainer")
    assert ask(launcher, "100") == "5200\n"
    assert finish(launcher).returncode == 0
    run, books = collected(path)
    assert metric_values(run) == list(range(5200))
    assert books["rows_lost"] == books["rows_dropped"] == 0


def _look_at(pid: int) -> range:
    """As many as the process has been woken up."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches"):
            return range(int(line.split()[1]))
    raise AssertionError("no such counter")


def test_a_run_deleted_while_it_is_going_stays_deleted_and_the_program_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "run"
    launcher = start_command("run", "--dir", tmp_path / "runs", "--name", "run", PROGRAMS / "rows_on_demand.py")
    assert ask(launcher, "100") == "100\n"
    wait_until_drained(path)
    path.rename(tmp_path / "doomed")
    shutil.rmtree(tmp_path / "doomed")
    assert ask(launcher, "40000") == "40100\n"
    wait_until(lambda: not drainers_of(path), "the end of the drainer")
    assert ask(launcher, "10") == "40110\n"
    ended = finish(launcher)
    assert ended.returncode == 0 and "was deleted during the run" in ended.stderr and "Traceback" not in ended.stderr
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_run_that_is_watched_may_be_deleted_too(tmp_path: Path) -> None:
    program = start_program("rows_on_demand.py", tmp_path, "run")
    ask(program, "10")
    wait_until_drained(tmp_path / "run")
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    wait_until(lambda: not drainers_of(tmp_path), "the end of the drainer")
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert ask(program, "40000") == "40010\n"  # the ring is full, nobody is there to start a drainer for
    ended = finish(program)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not (tmp_path / "run").exists()


# Elsewhere, and too much --------------------------------------------------------------------------------


def test_with_scratch_only_finished_files_reach_the_run_directory(tmp_path: Path) -> None:
    scratch, path = tmp_path / "scratch", tmp_path / "runs" / "run"
    launcher = start_command(
        "run", "--dir", tmp_path / "runs", "--name", "run", "--scratch", "scratch", PROGRAMS / "rows_on_demand.py",
        cwd=tmp_path,
    )  # fmt: skip
    assert ask(launcher, "3000") == "3000\n"
    wait_until_drained(path)
    (local,) = scratch.iterdir()
    assert sorted(file.name for file in local.iterdir()) == ["000001.seg", "ring"]
    process = RunPlace(path).processes()[0].path
    assert sorted(file.name for file in process.iterdir()) == ["manifest.copy.json", "manifest.json", "process.json"]
    with open_run(path) as run:
        assert metric_values(run) == list(range(3000))  # readable on this machine while it grows
    kill_drainer(path)
    assert ask(launcher, "3000") == "6000\n"
    assert finish(launcher).returncode == 0
    run, books = collected(path)
    assert metric_values(run) == list(range(6000)) and books["rows_lost"] == books["rows_dropped"] == 0
    wait_until(lambda: not list(scratch.iterdir()), "the end of the scratch directory")
    assert sorted(file.suffix for file in process.iterdir() if "metrics" in file.name) == [".parquet"]


def test_a_size_limit_takes_the_oldest_bulk_rows_first_and_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "run"
    launcher = start_command(
        "run", "--dir", tmp_path, "--name", "run", "--max-size", "2MB", PROGRAMS / "rows_on_demand.py"
    )
    for turn in range(1, 9):
        assert ask(launcher, "500 10") == f"{500 * turn}\n"
        wait_until_drained(path)
    assert finish(launcher).returncode == 0
    wait_until(lambda: not drainers_of(path), "the drainer's last look at the size")
    run, books = collected(path)
    assert metric_values(run) == list(range(4000))  # no bulk table: kept
    kept = [step for (step,) in run.rows("SELECT DISTINCT step FROM layers ORDER BY step").values]
    assert kept == list(range(80 - len(kept), 80)) and 0 < len(kept) < 80  # the newest
    assert books["drops"]["size_limit"] >= (80 - len(kept)) * 1000 and set(books["drops"]) == {"size_limit"}
    assert books["rows"]["layers"] == len(kept) * 1000 and books["rows_lost"] == 0
    assert books["size_bytes"] <= 2_200_000


def test_a_size_limit_also_holds_over_processes_that_have_ended(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for turn in range(3):
        which = ["--resume", "run"] if turn else ["--name", "run", "--max-size", "2MB"]
        launcher = start_command("run", "--dir", tmp_path, *which, PROGRAMS / "rows_on_demand.py")
        assert ask(launcher, "100 20") == "100\n"
        assert finish(launcher).returncode == 0
        wait_for_rest(path)
    wait_until(lambda: not drainers_of(path), "the drainer's last look at the size")
    run, books = collected(path)
    assert books["processes"] == 3 and books["size_bytes"] <= 2_200_000
    assert books["drops"]["size_limit"] > 0 and books["rows_lost"] == 0
    assert run.rows("SELECT count(*) FROM metrics").values == [(300,)]
    last = run.rows("SELECT process FROM processes ORDER BY started_ns DESC LIMIT 1").values[0][0]
    assert run.rows(f"SELECT max(step) FROM layers WHERE process = '{last}'").values == [(19,)]


def test_a_hung_up_disk_user_is_not_killed_by_us(disk: SmallDisk) -> None:
    """Signals still reach the program while the disk is full."""
    launcher = start_command("run", "--dir", disk.path, "--name", "run", PROGRAMS / "rows_on_demand.py")
    assert ask(launcher, "10") == "10\n"
    disk.fill()
    launcher.send_signal(signal.SIGTERM)
    assert finish(launcher).returncode == -signal.SIGTERM
    disk.free()


def test_a_process_whose_working_directory_is_gone_is_recorded(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        f"import os, stethos\nos.rmdir({str(gone)!r})\nwatch = stethos.watch(dir={str(tmp_path)!r}, name='run')\n"
        "stethos.log(i=1)\nwatch.close()"
    )
    result = finish(start("-c", code, cwd=gone))
    assert (result.returncode, result.stderr) == (0, "")
    run, _ = collected(tmp_path / "run")
    assert metric_values(run) == [1]
    assert only_process(run)["cwd"] is None
