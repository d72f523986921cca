"""`kill -9` at any moment, of the training, of its drainer, and of both: no completed row is lost, none comes twice."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from processes import (
    Counter,
    checked_books,
    collected,
    drainers_of,
    finish,
    kill_drainer,
    metric_values,
    only_process,
    start,
    start_command,
    start_program,
    wait_until,
)

from stethos.record.place import RunPlace
from stethos.store.run import Run, open_run

KILLS = 100
AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Killed:
    """What is known of a killed program: what it logged, and how many rows it had completed."""

    path: Path
    table: str
    rows: int

    def values(self, run: Run) -> list[int]:
        """The numbers in its rows that can be read, in their order."""
        if self.table == "metrics":
            return metric_values(run)
        return [json.loads(fields)["value"] for (fields,) in run.rows("SELECT fields FROM spans ORDER BY t_ns").values]


def kill_counting_program(directory: Path, number: int) -> Killed:
    """Start a program that logs rows, and kill it after a random number of them, from 1 to some thousands."""
    chance = random.Random(number)
    counter = Counter(directory / f"counter-{number}")
    target = int(math.exp(chance.uniform(0, math.log(6000))))
    table = "spans" if number % 4 == 3 else "metrics"
    pace = "1" if target < 200 else "0"  # slow enough to be killed among the first rows
    program = start_program("count_rows.py", directory, f"run-{number}", counter.path, "20000", pace, table)
    try:
        wait_until(lambda: counter.value >= target, f"row {target}")
        time.sleep(chance.uniform(0, 0.003))
    finally:
        program.kill()
        finish(program)
    killed = Killed(directory / f"run-{number}", table, counter.value)
    if number % 5 == 0:  # at once: what can be read now is a beginning of what was logged
        with open_run(killed.path) as run:
            seen = killed.values(run)
            assert seen == list(range(len(seen))) and len(seen) <= killed.rows + 1
    return killed


def test_no_completed_row_is_lost_or_invented_in_a_hundred_kills(tmp_path: Path) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        killed = list(pool.map(lambda number: kill_counting_program(tmp_path, number), range(KILLS)))
    for one in killed:
        run, books = collected(one.path)
        values = one.values(run)
        assert values == list(range(len(values)))
        assert len(values) in (one.rows, one.rows + 1)
        assert books["rows_lost"] == books["rows_dropped"] == 0
        process = only_process(run)
        assert process["state"] == "killed" and process["exit_code"] is None
        run.close()
    rows = [one.rows for one in killed]
    assert len(killed) == KILLS and min(rows) < 200 and max(rows) > 3000
    print(f"{KILLS} kills after {min(rows)} to {max(rows)} rows, {sum(rows)} in all, none lost, none invented")


def test_every_step_of_a_killed_training_is_there(tmp_path: Path) -> None:
    """Under `stethos run`, the training killed, and once the command itself."""
    trainings = []
    for number, target in enumerate((1, 40, 400, 40)):
        counter = Counter(tmp_path / f"counter-{number}")
        words = ("run", "--dir", tmp_path, "--name", f"run-{number}", "--preset", ("standard", "deep")[number % 2])
        program = Path(__file__).parents[1] / "programs" / "count_steps.py"
        trainings.append((number, target, counter, start_command(*words, program, counter.path)))
    for number, target, counter, launcher in trainings:
        wait_until(lambda counter=counter, target=target: counter.value >= target, f"step {target}")
        place = RunPlace(tmp_path / f"run-{number}")
        child = wait_until(lambda place=place: place.launchers()[0].get("child_pid"), "the pid in the launcher's file")
        os.kill(launcher.pid if number == 3 else child, signal.SIGKILL)
        assert finish(launcher).returncode == -signal.SIGKILL
        run, books = collected(place.path)
        steps = [step for (step,) in run.rows("SELECT step FROM steps ORDER BY t_ns").values]
        assert steps == list(range(len(steps))) and len(steps) in (counter.value, counter.value + 1)
        assert books["rows_lost"] == books["rows_dropped"] == 0
        assert (
            books["rows"]["layers"] > 0 and run.rows("SELECT DISTINCT layer FROM layers WHERE kind = 'weight'").values
        )
        process = only_process(run)
        assert process["state"] == "killed" and process["torch"]
        if number != 3:
            assert process["ending"] == "killed by SIGKILL" and process["exit_code"] == -9
            assert books["state"] == "killed"


def test_ten_kills_of_the_drainer_neither_lose_nor_double_a_row(tmp_path: Path) -> None:
    chance = random.Random(0)
    counter = Counter(tmp_path / "counter")
    program = Path(__file__).parents[1] / "programs" / "count_rows.py"
    path = tmp_path / "run"
    launcher = start_command(
        "run",
        "--dir",
        tmp_path,
        "--name",
        "run",
        program,
        "-",
        "-",
        counter.path,
        "30000",
        "4",
        stderr=subprocess.DEVNULL,
    )
    killed = set()
    for number in range(10):
        if number == 9:
            wait_until(lambda: counter.value, "the first row")
        wait_until(lambda: drainers_of(path), "a drainer")
        time.sleep(chance.uniform(0, 0.5))
        killed.add(kill_drainer(path))
    assert finish(launcher, "end\n").returncode == 0
    run, books = collected(path)
    assert len(killed) == 10
    values = metric_values(run)
    assert values == list(range(30_000))
    assert books["rows_lost"] == books["rows_dropped"] == 0
    assert only_process(run)["state"] == "ended"


def test_a_program_without_a_command_around_it_starts_its_drainer_again(tmp_path: Path) -> None:
    counter = Counter(tmp_path / "counter", is_held=True)
    path = tmp_path / "run"
    program = start_program("count_rows.py", tmp_path, "run", counter.path, "40000", "8")
    killed = kill_drainer(path)
    counter.release()
    assert wait_until(lambda: drainers_of(path), "another drainer") != [killed]
    wait_until(lambda: counter.value == 40_000, "the last row")
    assert finish(program, "end\n").returncode == 0
    run, books = collected(path)
    values = metric_values(run)
    assert values == sorted(set(values)) and values[-1] == 39_999
    assert len(values) + books["rows_dropped"] == 40_000 and books["rows_lost"] == 0


def test_a_reader_collects_what_a_killed_program_and_a_killed_drainer_left(tmp_path: Path) -> None:
    counter = Counter(tmp_path / "counter")
    path = tmp_path / "run"
    program = start_program("count_rows.py", tmp_path, "run", counter.path, "9000")
    kill_drainer(path)
    wait_until(lambda: counter.value == 9000, "the last row")
    program.kill()
    finish(program)
    assert not drainers_of(path)
    ring = RunPlace(path).processes()[0].ring()
    assert ring.exists()
    open_run(path).close()  # starts a drainer
    run, books = collected(path)
    assert metric_values(run) == list(range(9000))
    wait_until(lambda: not ring.exists(), "the end of the ring")
    assert books["rows_lost"] == books["rows_dropped"] == 0
    assert only_process(run)["state"] == "killed"


def test_a_drainer_that_hangs_costs_counted_rows_and_nothing_else(tmp_path: Path) -> None:
    """Stopped, its ring fills and drops the newest; woken up, it goes on."""
    code = """
import sys, stethos
stethos.watch(dir=sys.argv[1], name="run")
for count in (50_000, 1_000):
    sys.stdin.readline()
    for i in range(count):
        stethos.log(**{f"i{count}": i})
    print("done", flush=True)
sys.stdin.readline()
"""
    path = tmp_path / "run"
    program = start("-c", code, tmp_path)
    assert program.stdin is not None and program.stdout is not None
    (drainer,) = wait_until(lambda: drainers_of(path), "a drainer")
    place = RunPlace(path)
    wait_until(lambda: place.processes() and place.processes()[0].manifest(), "the drainer at work")
    os.kill(drainer, signal.SIGSTOP)
    program.stdin.write("go\n")
    program.stdin.flush()
    assert program.stdout.readline() == "done\n"
    with open_run(path) as live:
        assert checked_books(live)["drops"]["ring_full"] > 0
    assert drainers_of(path) == [drainer]  # a second one does not disturb it
    os.kill(drainer, signal.SIGCONT)
    with open_run(path) as live:
        wait_until(lambda: live.summary()["rows_waiting"] == 0, "the drainer at work again")
    program.stdin.write("go\n")
    program.stdin.flush()
    assert program.stdout.readline() == "done\n"
    assert finish(program, "end\n").returncode == 0
    run, books = collected(path)
    first, second = metric_values(run, "i50000"), metric_values(run, "i1000")
    assert first == list(range(len(first)))  # the newest were dropped, what is kept has no holes
    assert second == list(range(1000))
    assert books["drops"] == {"ring_full": 50_000 - len(first)} and books["rows_lost"] == 0


def test_a_drainer_ends_with_its_run_and_takes_its_ring_along(tmp_path: Path) -> None:
    program = start("-c", f"import stethos; stethos.watch(dir={str(tmp_path)!r}, name='run'); stethos.log(i=0)")
    assert finish(program).returncode == 0
    run, _ = collected(tmp_path / "run")
    assert metric_values(run) == [0] and only_process(run)["state"] == "ended"
    wait_until(lambda: not drainers_of(tmp_path / "run"), "the end of the drainer")
    process = RunPlace(tmp_path / "run").processes()[0]
    files = {path.name for path in process.path.iterdir()} - {"000001.host.parquet"}  # a sample, if it took that long
    assert files == {"000001.metrics.parquet", "manifest.copy.json", "manifest.json", "process.json"}


def test_a_closed_watch_is_collected_while_its_program_lives_on(tmp_path: Path) -> None:
    code = f"""
import sys, stethos
for turn in range(2):
    watch = stethos.watch(dir={str(tmp_path)!r}, name="run")
    stethos.log(i=turn)
    watch.close()
    stethos.log(i=99)
    print("closed", flush=True)
    sys.stdin.readline()
"""
    program = start("-c", code)
    assert program.stdin is not None and program.stdout is not None
    for turn in range(2):
        assert program.stdout.readline() == "closed\n"
        run, books = collected(tmp_path / "run")
        assert metric_values(run) == list(range(turn + 1))
        assert [process["state"] for process in run.processes()] == ["ended"] * (turn + 1)
        assert books["rows_lost"] == books["rows_dropped"] == 0 and program.poll() is None
        program.stdin.write("on\n")
        program.stdin.flush()
    finish(program)


def test_rows_of_exit_handlers_are_kept(tmp_path: Path) -> None:
    code = f"""
import atexit, stethos
atexit.register(lambda: stethos.log(i=1))
stethos.watch(dir={str(tmp_path)!r}, name="run")
stethos.log(i=0)
"""
    finish(start("-c", code))
    run, _ = collected(tmp_path / "run")
    assert metric_values(run) == [0, 1]


def test_a_process_that_joins_while_the_drainer_is_leaving_is_drained(tmp_path: Path) -> None:
    """One after the other into the same run, at every distance around the drainer's last second."""
    for number, pause_s in enumerate((0.0, 0.95, 1.0, 1.05, 1.1, 1.2)):
        time.sleep(pause_s)
        code = f"import stethos; stethos.watch(dir={str(tmp_path)!r}, name='run'); stethos.log(i={number})"
        assert finish(start("-c", code)).returncode == 0
        wait_until(lambda number=number: len(_ended(tmp_path / "run")) == number + 1, f"process {number}")
    run, _ = collected(tmp_path / "run")
    assert metric_values(run) == list(range(6))


def _ended(path: Path) -> list[str]:
    return [process.name for process in RunPlace(path).processes() if "ended" in process.manifest()]


def test_a_lock_that_is_only_looked_at_is_not_inherited_by_a_fork(tmp_path: Path) -> None:
    code = """
import os, sys, threading, time
from pathlib import Path
from stethos.record.place import RunPlace, host_key
from stethos.record.spawn import is_drained, take_lock

run = RunPlace(Path(sys.argv[1]))
os.close(take_lock(run.drainer_lock(host_key())))
is_over = False
def look():
    while not is_over:
        is_drained(run)
looker = threading.Thread(target=look)
looker.start()
children = []
for _ in range(300):
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    children.append(pid)
is_over = True
looker.join()
print(take_lock(run.drainer_lock(host_key())) is not None)
for pid in children:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
"""
    assert finish(start("-c", code, tmp_path)).stdout == "True\n"


def test_the_registry_forgets_a_killed_process(tmp_path: Path, own_registry: Path) -> None:
    counter = Counter(tmp_path / "counter")
    program = start_program("count_rows.py", tmp_path, "run", counter.path, "10")
    wait_until(lambda: counter.value == 10, "the last row")
    entry = own_registry / str(program.pid)
    assert entry.exists()
    program.kill()
    finish(program)
    wait_until(lambda: not entry.exists(), "the drainer taking it off the registry")
