"""torch's profiler in a live training, on demand: the steps asked for, a trace of bounded size, the same results."""

from __future__ import annotations

import argparse
import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from living import Living
from processes import DEADLINE_S, PROGRAMS, finish, start, start_command, wait_until

import stethos
from stethos.cli.task.trace_steps import trace_steps
from stethos.errors import LiveError, StethosError, UsageError
from stethos.live.ask import ask


def asked(training: Living, **arguments: Any) -> dict[str, Any]:
    return ask(training.process(), "profile", timeout_s=DEADLINE_S, wait_s=60, **arguments)


def test_three_steps_are_profiled_and_the_training_goes_on(with_main: Living, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    reply = asked(with_main, steps=3, path=str(path))
    ops = {row["op"]: row["calls"] for row in reply["by_time"]}
    steps = [calls for name, calls in ops.items() if name.startswith("Optimizer.step#")]
    assert reply["steps"] == 3 and steps == [3] and reply["duration_ms"] > 0
    assert any(row["op"].startswith("aten::") and row["allocated_bytes"] > 0 for row in reply["by_memory"])
    trace = json.loads(gzip.decompress(path.read_bytes()))
    names = [event.get("name", "") for event in trace["traceEvents"]]
    assert sum(name.startswith("Optimizer.step#") for name in names) == 3
    assert reply["events"] == len(names) and reply["events_left_out"] == 0 and reply["bytes"] == path.stat().st_size
    with_main.wait_for_steps(3)


def test_a_trace_waits_until_steps_become_slow(tmp_path: Path) -> None:
    slow, over = tmp_path / "slow", tmp_path / "over"
    words = ("run", "--dir", tmp_path, "--name", "r", "--trace-slow", "10", PROGRAMS / "slows_down.py", slow, over)
    job = start_command(*words)
    trace = tmp_path / "r" / "slow-steps.json.gz"
    try:
        wait_until(lambda: _steps_in(tmp_path / "r") > 80, "steps at the usual pace")
        assert not trace.exists()
        slow.touch()
        wait_until(trace.exists, "the trace of slow steps")
    finally:
        over.touch()
        said = finish(job)
    assert said.returncode == 0, said.stderr
    names = [event.get("name", "") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]]
    assert sum(name.startswith("Optimizer.step#") for name in names) == 3


def _steps_in(path: Path) -> int:
    try:
        with stethos.open_run(path) as run:
            return int(run.rows("SELECT count(*) FROM steps").values[0][0])
    except StethosError:
        return 0


def test_a_trace_is_cut_to_its_longest_events(with_main: Living, tmp_path: Path) -> None:
    path = tmp_path / "small.json.gz"
    reply = asked(with_main, steps=2, path=str(path), limit_bytes=8192)
    assert path.stat().st_size <= 8192 and reply["events_left_out"] > 0
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert any(event.get("name", "").startswith("Optimizer.step#") for event in events)


def test_what_cannot_be_done_is_refused(with_main: Living, tmp_path: Path) -> None:
    for arguments, words in (
        ({"steps": 0}, "from 1 to 100"),
        ({"steps": True}, "from 1 to 100"),
        ({"limit_bytes": 5}, "1024 or more"),
        ({"path": "trace.json.gz"}, "absolute"),
        ({"path": str(tmp_path / "none" / "t.json.gz")}, "no directory"),
    ):
        with pytest.raises(UsageError, match=words):
            asked(with_main, **arguments)
    (tmp_path / "t.json.gz").touch()
    with pytest.raises(UsageError, match="exists"):
        asked(with_main, path=str(tmp_path / "t.json.gz"))


def test_a_profiler_of_the_programs_own_is_left_alone(with_main: Living) -> None:
    with_main.ok("eval", "import torch; torch.own = torch.profiler.profile(); torch.own.start()")
    try:
        with pytest.raises(LiveError, match="a profiler is running"):
            asked(with_main)
    finally:
        with_main.ok("eval", "torch.own.stop(); del torch.own")


@pytest.mark.usefixtures("here")
def test_the_command_shows_operators_by_time_and_by_memory(
    with_main: Living, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = argparse.Namespace(
        target=str(with_main.process().pid), dir=None, trace_steps=2, trace=tmp_path / "t.json.gz", trace_limit=1 << 20,
        force=False, json=False, when_slow=None, is_awaited=False,
    )  # fmt: skip
    assert trace_steps(arguments) == 0
    out = capsys.readouterr().out
    assert "2 steps from step" in out and "by time" in out and "by memory allocated" in out and "t.json.gz" in out
    assert trace_steps(argparse.Namespace(**{**vars(arguments), "json": True, "trace": None})) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 2


def test_a_traced_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    program, steps = PROGRAMS / "live_training.py", "40"
    bare = finish(start(program, "main", tmp_path, steps, cwd=tmp_path))
    (tmp_path / "stall").touch()  # else it may be over before it is asked
    training = Living("main", tmp_path, steps)

    def is_watching() -> bool:
        here = [one for one in training.all_processes() if one.socket.exists()]
        return bool(here) and bool(ask(here[0], "about", timeout_s=60)["is_watching"])

    def let_go() -> None:
        tasks = "from stethos.observe import boot; len(boot.current().session.agent.boundary._tasks)"
        wait_until(lambda: ask(process, "eval", DEADLINE_S, code=tasks, now=True)["value"] == "1", "its being asked")
        (tmp_path / "stall").unlink()

    try:
        wait_until(is_watching, "the training to be watched")
        process = training.process()
        other = threading.Thread(target=let_go)
        other.start()
        reply = asked(training, steps=3)
        other.join()
        training.launcher.wait(DEADLINE_S)
    finally:
        said = training.close()
    assert reply["steps"] == 3 and bare.stdout.strip() in said and len(bare.stdout.strip()) == 64
