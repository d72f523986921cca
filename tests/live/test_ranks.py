"""An unmodified DistributedDataParallel script of two ranks under `stethos run torchrun`: asked, compared, and hung."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import DEADLINE_S, PROGRAMS, environment, finish, free_port, start_command, wait_until

from stethos.cli.main import main
from stethos.live.registry import live_processes
from stethos.live.target import steps_of
from stethos.record.place import RunPlace
from stethos.store.boards import boards_of
from stethos.store.run import open_run

PATIENCE_S = DEADLINE_S
LIMIT_S = 2.0
TORCHRUN = Path(sys.executable).parent / "torchrun"


class Job:
    """Two ranks that train until they are told otherwise."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run = RunPlace(directory / "runs" / "two")
        self.errors = directory / "stderr"
        with self.errors.open("w", encoding="utf-8") as stderr:
            self.process: subprocess.Popen[str] = start_command(
                "run", "--dir", directory / "runs", "--name", "two", "--hang-after", str(LIMIT_S), TORCHRUN,
                "--nproc-per-node", "2", "--master-port", str(free_port()), PROGRAMS / "two_ranks.py", directory,
                stderr=stderr, stdout=subprocess.DEVNULL,
            )  # fmt: skip

    def mark(self, name: str) -> None:
        (self.directory / name).touch()

    def hangs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for path in self.run.path.glob("hang-*.json"):
            found += json.loads(path.read_text(encoding="utf-8"))["hangs"]
        return found


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A registry of our own, also for the commands that run in this process."""
    directory = tmp_path_factory.mktemp("ranks")
    directory.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(XDG_RUNTIME_DIR=str(directory)).items():
            patch.setenv(name, value)
        patch.setenv("STETHOS_DIR", str(directory / "runs"))
        yield directory


@pytest.fixture(autouse=True)
def own_registry(private: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of the one of each test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(private))
    return private / "stethos"


@pytest.fixture(scope="module")
def job(private: Path) -> Iterator[Job]:
    one = Job(private)
    try:
        wait_until(
            lambda: (
                [steps_of(process) > 20 for process in live_processes() if process.rank is not None] == [True, True]
            ),
            "steps of both ranks",
            PATIENCE_S,
        )
        yield one
    finally:
        for process in live_processes(one.run.path):  # one of them sleeps for an hour
            with contextlib.suppress(ProcessLookupError):  # torchrun ends the others when one is gone
                os.kill(process.pid, signal.SIGKILL)
        one.process.kill()
        one.process.communicate()


Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(job: Job, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run `stethos WORDS` here; its status, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(list(words))
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_every_rank_joins_one_run_by_itself(job: Job) -> None:
    ranks = {process.rank: process.world_size for process in live_processes(job.run.path)}
    assert ranks[0] == ranks[1] == 2


def test_all_backtrace_is_one_tree(ask: Ask) -> None:
    status, out, _ = ask("all", "backtrace")
    assert status == 0
    assert "<module> (two_ranks.py:" in out
    assert "[ranks 0-1]" in out
    assert "torchrun" not in out
    status, out, _ = ask("all", "backtrace", "--json")
    assert json.loads(out)["tree"]["members"] == ["0", "1"]
    assert json.loads(out)["missing"] == {}


def test_all_query_runs_for_each_rank(ask: Ask) -> None:
    sql = "SELECT count(*) > 3 AS many FROM steps"
    wait_until(lambda: '"many": false' not in ask("all", "query", "--json", sql)[1], "some steps of each rank")
    status, out, err = ask("all", "query", "--json", sql)
    assert (status, err) == (0, "")
    assert [(row["rank"], bool(row["host"]), row["many"]) for row in json.loads(out)] == [
        (0, True, True),
        (1, True, True),
    ]


def test_all_query_joins_ranks(ask: Ask) -> None:
    sql = (
        "SELECT a.step, a.loss = b.loss AS same, a.host = b.host AS near FROM steps a JOIN steps b USING (step) "
        "WHERE a.rank = 0 AND b.rank = 1 AND a.step < 3 ORDER BY step"
    )
    _, out, _ = ask("all", "query", "--json", sql)
    assert [(row["step"], row["same"], row["near"]) for row in json.loads(out)] == [
        (0, True, True),
        (1, True, True),
        (2, True, True),
    ]


def test_all_query_looks_at_the_stacks_of_each_rank(ask: Ask) -> None:
    _, out, _ = ask("all", "query", "--json", "SELECT func FROM python.backtrace ORDER BY depth DESC LIMIT 1")
    assert [(row["rank"], row["func"]) for row in json.loads(out)] == [(0, "<module>"), (1, "<module>")]


def test_one_rank_is_asked_alone(ask: Ask) -> None:
    _, out, _ = ask("rank:1", "query", "--json", "SELECT DISTINCT rank FROM steps")
    assert {row["rank"] for row in json.loads(out)} == {1}


def test_all_eval_runs_at_the_same_step(ask: Ask) -> None:
    status, out, err = ask("all", "eval", "--wait", "60", "--json", "trainer.current_step, dist.get_rank()")
    assert status == 0, err
    replies = json.loads(out)
    assert [(reply["rank"], reply["where"]) for reply in replies] == [(0, "step"), (1, "step")]
    assert replies[0]["step"] == replies[1]["step"]
    assert [reply["value"] for reply in replies] == [f"({replies[0]['step']}, 0)", f"({replies[0]['step']}, 1)"]


def test_a_collective_runs_on_all_ranks_or_not_at_all(ask: Ask, job: Job) -> None:
    code = "tensor = torch.tensor([trainer.current_step])\ndist.all_reduce(tensor)\nprint(tensor.item())"
    status, _, err = ask("rank:0", "eval", code)
    assert status == 6
    assert "dist.all_reduce on one rank of 2 would wait for the others forever" in err
    status, out, err = ask("all", "eval", "--wait", "60", "--json", code)
    assert status == 0, err
    replies = json.loads(out)
    assert {reply["output"] for reply in replies} == {f"{2 * replies[0]['step']}\n"}


def test_collectives_are_recorded_and_shown(ask: Ask) -> None:
    def calls_of() -> dict[tuple[int, str, str], dict[str, Any]]:
        rows = json.loads(ask("collectives", "--calls", "--json")[1])["calls"]
        found = {(row["rank"], row["op"], row["via"]): row for row in rows}
        return found if {(0, "all_reduce", "python"), (1, "all_reduce", "c++")} <= set(found) else {}

    status, out, _ = ask("collectives", "--json")
    assert status == 0
    assert {row["rank"] for row in json.loads(out)["ranks"]} == {0, 1}
    calls = wait_until(calls_of, "calls of Python and of C++")
    votes = calls[0, "all_reduce", "python"]
    assert 4 * votes["calls"] <= votes["bytes"] < 5 * votes["calls"]  # and the one that was evaluated
    gradients = calls[1, "all_reduce", "c++"]
    assert gradients["bytes"] == gradients["calls"] * 4 * (8 * 2 + 2)


def test_both_ranks_count_a_collective_alike(ask: Ask, job: Job) -> None:
    sql = """SELECT count(*) FILTER (a.op = b.op AND a.bytes = b.bytes), count(*) FROM collectives a
             JOIN collectives b ON a.seq = b.seq AND a."group" = b."group" AND a.rank = 0 AND b.rank = 1"""
    with open_run(job.run.path) as run:
        counted = wait_until(lambda: [row for row in run.rows(sql).values if row[1] > 20], "calls of both ranks")
    ((same, all_of_them),) = counted
    assert same == all_of_them


def test_the_gateway_serves_the_same(ask: Ask, job: Job, private: Path) -> None:
    gateway = start_command(
        "gateway", "--listen", "127.0.0.1:0", "--keys", private / "keys", "--dir", private / "runs",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert gateway.stderr is not None
        found = re.search(r"gateway on (127\.0\.0\.1):(\d+)", gateway.stderr.readline())
        assert found
        host, port = found.groups()
        read, act = (str(private / "keys" / f"{right}.token") for right in ("read", "act"))
        status, out, err = ask("-t", f"{host}:{port}/two/all", "--token-file", read, "backtrace")
        assert (status, err) == (0, "")
        assert "[ranks 0-1]" in out
        sql = "SELECT count(*) > 10 AS many FROM steps"
        status, out, _ = ask("query", "--json", sql, "-t", f"{host}:{port}/two/all", "--token-file", read)
        assert [row["rank"] for row in json.loads(out)] == [0, 1]
        status, _, err = ask("-t", f"{host}:{port}/two/rank:1", "eval", "1 + 1", "--token-file", read)
        assert (status, err.startswith("this token may read, not act")) == (6, True)
        status, out, _ = ask("-t", f"{host}:{port}/two/rank:1", "eval", "dist.get_rank() + 41", "--token-file", act)
        assert (status, out) == (0, "42\n")
        status, _, err = ask("-t", f"{host}:{port}", "query", "SELECT 1")
        assert (status, "no token was given for it" in err) == (2, True)
    finally:
        gateway.terminate()
        finish(gateway)
    with open_run(job.run.path) as run:
        wait_until(lambda: run.rows("SELECT who FROM audit WHERE who LIKE 'gateway%'").values, "the row of the audit")
        ((who,), *_) = run.rows("SELECT who FROM audit WHERE who LIKE 'gateway%'").values
    assert who == "gateway act@127.0.0.1"


def test_a_change_is_made_by_all_ranks_at_the_same_step(ask: Ask) -> None:
    for words in (["lr", "x0.5"], ["clip", "0.01"], ["lr", "undo"], ["all", "clip", "off"]):
        status, out, err = ask(*words, "--json")
        replies = json.loads(out)
        assert (status, err, [reply["rank"] for reply in replies]) == (0, "", [0, 1]), words
        assert replies[0]["step"] == replies[1]["step"], words
    _, out, _ = ask("lr")
    assert out.count("lr 0.001\n") == 2
    status, out, _ = ask("sync")
    assert (status, "the ranks are in step" in out) == (0, True)
    status, _, err = ask("lr", "x0.5", "--at-step", "3")
    assert (status, "step 3 had passed already" in err) == (6, True)


def test_who_names_no_rank_is_told_that_there_are_more(ask: Ask) -> None:
    assert ask("eval", "dist.get_rank()") == (
        0, "0\n", "stethos: this was rank 0 of 2; `stethos all eval` runs it on every rank\n",
    )  # fmt: skip
    assert ask("rank:0", "eval", "dist.get_rank()") == (0, "0\n", "")
    _, out, _ = ask("backtrace")
    titles = [line for line in out.splitlines() if line.startswith("process ")]
    assert [title.partition(", ")[2] for title in titles] == ["rank 0", "rank 1", ""]  # what started them comes last


def test_sync_names_the_rank_that_differs(ask: Ask, job: Job) -> None:
    status, out, _ = ask("sync")
    assert (status, "the ranks are in step" in out) == (0, True)
    job.mark("drift")
    wait_until(lambda: not (job.directory / "drift").exists(), "rank 1 to go its own way")
    status, out, _ = ask("sync", "--json")
    assert status == 1
    assert json.loads(out)["differ"] == {"0": "parameters", "1": "parameters"}  # of two, who could say


def test_one_rank_can_be_changed_alone_and_that_is_said(ask: Ask) -> None:
    status, out, err = ask("rank:1", "lr", "x0.5")
    assert (status, out) == (0, "rank 1  SGD  group 0  lr 0.0005 (was 0.001)\n")
    assert err.startswith("stethos: rank 1 alone of 2 was changed; ranks that train one model differ from now on")
    assert ask("rank:1", "lr", "undo")[0] == 0


def test_a_deadlock_is_named_with_the_missing_rank_and_both_places(ask: Ask, job: Job) -> None:
    assert job.hangs() == []
    job.mark("stray")
    wait_until(job.hangs, "the hang", PATIENCE_S)
    told_ns = time.time_ns()
    title = job.hangs()[0]["title"]
    boards = {board.rank: board for board in boards_of(job.run)}
    seq = boards[0].groups[0].begun
    assert title.startswith(
        f"rank 1 is missing from all_reduce {seq} of group world: it sleeps in stray (two_ranks.py:"
    )
    assert "rank 0 waits in it, at main (two_ranks.py:" in title
    assert boards[1].groups[0].begun == seq - 1
    assert told_ns - boards[0].last_step_ns > LIMIT_S * 1e9
    wait_until(lambda: title in job.errors.read_text(encoding="utf-8"), "the line of stethos run")
    _, out, _ = ask("collectives")
    assert f"rank 0 waits in all_reduce {seq} of group world: rank 1 has not begun it" in out
    _, out, _ = ask("diagnose", "--json")
    (finding,) = [one for one in json.loads(out)["findings"] if one["code"] == "SYS016"]
    assert (finding["kind"], finding["ranks"], finding["open"]) == ("missing-rank", [1], True)
    with open_run(job.run.path) as run:
        sql = """SELECT rank, func FROM stacks
            WHERE reason = 'hang 1' AND thread = 'MainThread' AND func IN ('stray', 'all_reduce')"""
        assert sorted(run.rows(sql).values) == [(0, "all_reduce"), (1, "stray")]


def test_in_a_deadlock_no_collective_is_begun_and_nobody_is_said_to_be_in_step(ask: Ask, job: Job) -> None:
    wait_until(job.hangs, "the hang", PATIENCE_S)
    status, _, err = ask("all", "eval", "dist.barrier()")
    assert (status, "not all ranks make steps" in err) == (6, True)
    status, _, err = ask("lr", "x0.1")
    assert (status, "nothing was changed: not all ranks make steps" in err) == (6, True)
    status, out, _ = ask("all", "backtrace")
    assert "stray (two_ranks.py:" in out
    status, out, _ = ask("sync", "--json")
    assert (status, json.loads(out)["ok"]) == (1, False)


def test_a_missing_rank_is_reported(ask: Ask, job: Job) -> None:
    wait_until(job.hangs, "the hang", PATIENCE_S)
    (other,) = [process for process in live_processes(job.run.path) if process.rank == 1]
    registry = other.socket.parent / str(other.pid)
    kept = registry.read_text(encoding="utf-8")
    registry.unlink()  # as if it were on another machine
    try:
        _, out, _ = ask("all", "backtrace")
        assert "rank 1 is missing: it is not alive here" in out
        status, _, err = ask("two/all", "clip", "1.0")
        assert (status, "nothing was changed" in err) == (6, True)
    finally:
        registry.write_text(kept, encoding="utf-8")


def test_a_deadlock_that_ends_is_over(job: Job) -> None:
    wait_until(job.hangs, "the hang", PATIENCE_S)
    (other,) = [process for process in live_processes(job.run.path) if process.rank == 1]
    os.kill(other.pid, signal.SIGUSR1)
    wait_until(lambda: job.hangs()[0]["is_over"], "the end of the hang", PATIENCE_S)


def test_ranks_that_wait_for_one_that_evaluates_do_not_hang(job: Job) -> None:
    job.mark("evaluate")
    wait_until(lambda: not (job.directory / "evaluate").exists(), "the end of the evaluation", PATIENCE_S)
    assert len(job.hangs()) == 1  # the one before


def test_ranks_that_call_different_collectives_are_named(ask: Ask, job: Job) -> None:
    assert len(job.hangs()) == 1
    job.mark("mismatch")
    # Two seconds without a step are a hang here; a machine that is busy elsewhere may stop a rank for as long.
    titles = wait_until(
        lambda: [one["title"] for one in job.hangs()[1:] if "did not call" in one["title"]], "the hang", PATIENCE_S
    )
    title = titles[0]
    calls = {board.rank: (board.groups[0].begun, board.groups[0].op) for board in boards_of(job.run) if board.groups}
    seq = calls[0][0]
    assert calls == {0: (seq, "all_reduce"), 1: (seq, "broadcast")}
    assert title.startswith(f"rank 1 did not call all_reduce {seq} of group world as the others did: it called ")
    assert "it called broadcast of 4 bytes instead, in main (two_ranks.py:" in title
    assert "; rank 0 waits in it, at main (two_ranks.py:" in title
    _, out, _ = ask("collectives")
    line = f"rank 0 waits in all_reduce {seq} of group world, 4 bytes: rank 1 called broadcast of 4 bytes"
    assert line in out.splitlines()
    _, out, _ = ask("diagnose", "--json")
    findings = json.loads(out)["findings"]
    assert [one["ranks"] for one in findings if one["code"] == "RNK002"] == [[1]]
    listed = [*findings, *(effect for one in findings for effect in one["consequences"])]
    found = {one["kind"]: one for one in listed if one["code"] == "SYS016"}
    assert (found["mismatch"]["ranks"], found["mismatch"]["open"]) == ([1], True)
    assert not found["missing-rank"]["open"]
