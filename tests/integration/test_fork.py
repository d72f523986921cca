"""Children by fork and spawn: those that have something to say become processes of the run, others leave no trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import (
    PROGRAMS,
    UNBOUNDED,
    checked_books,
    collected,
    command,
    environment,
    finish,
    only_process,
    start,
    wait_until,
)

from stethos.store.run import Run, open_run

ROWS = 40


def children_of(run: Run) -> list[dict[str, object]]:
    """The processes that logged as children, the first started first; each with all its rows, once and in order."""
    found = []
    for process in sorted(run.processes(), key=lambda row: row["started_ns"]):
        name = process["process"]
        rows = run.rows(f"SELECT value FROM metrics WHERE process = '{name}' AND name = 'child' ORDER BY t_ns").values
        if rows:
            assert [value for (value,) in rows] == list(range(ROWS))
            others = f"SELECT count(*) FROM metrics WHERE process = '{name}' AND name != 'child'"
            assert run.rows(others).values == [(0,)]
            found.append(process)
    return found


@pytest.mark.parametrize(
    ("method", "children", "codes", "states"),
    [
        ("fork", 3, [0, 1, 0], ["ended", "failed", "ended"]),
        ("spawn", 3, [0, 1, 0], ["ended", "failed", "ended"]),
        ("forkserver", 1, [0], ["ended"]),
        ("raw", 2, [0, 0], ["ended", "ended"]),
    ],
)
def test_children_that_log_become_processes_of_the_run(
    tmp_path: Path, method: str, children: int, codes: list[int], states: list[str]
) -> None:
    ended = command("run", "--dir", tmp_path, "--name", "run", PROGRAMS / "family.py", method, str(children))
    assert (ended.returncode, ended.stdout) == (0, f"{codes}\n"), ended.stderr
    run, books = collected(tmp_path / "run")
    found = children_of(run)
    assert [process["state"] for process in found] == states
    assert len({process["pid"] for process in found}) == children == books["processes"] - 1
    messages = sorted(message for (message,) in run.rows("SELECT message FROM logs WHERE logger = 'family'").values)
    assert messages == [f"child {number if method != 'raw' else 0}" for number in range(children)]
    assert run.rows("SELECT count(*) FROM metrics WHERE name = 'parent'").values == [(children,)]
    assert books["rows_lost"] == books["rows_dropped"] == 0
    if children == 3:
        assert found[1]["ending"] == "uncaught ValueError: the second child fails"
        assert "in child" in str(found[1]["traceback"])


def test_the_workers_of_a_pool_become_processes_of_the_run(tmp_path: Path) -> None:
    ended = command("run", "--dir", tmp_path, "--name", "run", PROGRAMS / "family.py", "pool", "2")
    assert (ended.returncode, ended.stdout) == (0, "[0, 0]\n"), ended.stderr
    run, books = collected(tmp_path / "run")
    assert run.rows("SELECT count(*) FROM metrics WHERE name = 'child'").values == [(2 * ROWS,)]
    assert books["rows_lost"] == books["rows_dropped"] == 0


def test_thirty_forks_amid_threads_that_log_never_hang(tmp_path: Path) -> None:
    """Whatever lock a thread held at the moment of the fork; `finish` is the watchdog."""
    ended = command("run", "--dir", tmp_path, "--name", "run", PROGRAMS / "family.py", "raw", "30")
    assert (ended.returncode, ended.stdout) == (0, f"{[0] * 30}\n"), ended.stderr
    run, books = collected(tmp_path / "run")
    assert len(children_of(run)) == 30 and books["rows_lost"] == books["rows_dropped"] == 0


def test_workers_of_a_data_loader_leave_no_trace(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, num_workers=2, multiprocessing_context="fork")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
""")
    ended = command("run", "--dir", tmp_path, "--name", "run", script)
    assert ended.returncode == 0, ended.stderr
    run, _ = collected(tmp_path / "run")
    assert only_process(run)["steps"] == 24
    assert run.rows("SELECT count(*), sum(samples) FROM steps").values == [(24, 192)]


def test_a_trained_model_is_trained_on_in_a_forked_child_under_its_own_names(tmp_path: Path) -> None:
    """The child's rows are its own: steps from 0, and layers by their true names."""
    script = tmp_path / "train.py"
    script.write_text("""
import os, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
train(5)
pid = os.fork()
if not pid:
    train(70)
    os._exit(0)
os.waitpid(pid, 0)
""")
    assert (
        command("run", "--dir", tmp_path, "--name", "run", script, env=environment(PYTHONPATH=UNBOUNDED)).returncode
        == 0
    )
    run, _ = collected(tmp_path / "run")
    rows = run.rows("SELECT process, list(step ORDER BY step), any_value(model) FROM steps GROUP BY process").values
    assert sorted(steps for _, steps, _ in rows) == [list(range(5)), list(range(70))]
    assert {model for *_, model in rows} == {"Sequential"}
    names = run.rows("SELECT process, list(DISTINCT layer ORDER BY layer) FROM layers GROUP BY process").values
    assert [layers for _, layers in names] == [["0.bias", "0.weight", "1.bias", "1.weight"]] * len(names)
    assert len(names) == 2


def test_a_child_of_a_watched_program_records_into_the_same_run(tmp_path: Path) -> None:
    code = f"""
import os, sys, stethos
stethos.watch(dir={str(tmp_path)!r}, name="run")
stethos.log(who=0)
pid = os.fork()
stethos.log(who=1 if pid else 2)
if not pid:
    os._exit(0)
os.waitpid(pid, 0)
print("done", flush=True)
sys.stdin.readline()
"""
    program = start("-c", code)
    assert program.stdout is not None and program.stdout.readline() == "done\n"
    with open_run(tmp_path / "run") as live:
        wait_until(lambda: live.tables()["metrics"] == 3, "all rows")
        states = {process["pid"]: process["state"] for process in live.processes()}
        assert states.pop(program.pid) == "running" and list(states.values()) == ["ended"]
        checked_books(live)
    finish(program, "end\n")
    collected(tmp_path / "run")
