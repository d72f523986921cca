"""Attaching to a process that was not started with us, and leaving it as it was."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import DEADLINE_S, command, environment, start, start_program, wait_until

from stethos.live import attach as ladder
from stethos.live import injection, permission
from stethos.live.ask import ask
from stethos.live.registry import live_process

_STATE = """
import sys, threading, torch, torch.optim.optimizer as o, torch.utils.data.dataloader as d
print([len(o._global_optimizer_pre_hooks), len(o._global_optimizer_post_hooks), torch.autograd.backward.__module__,
       d._BaseDataLoaderIter.__next__.__module__, sys.excepthook is sys.__excepthook__])
"""


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path, dict[str, str]]]:
    """A training that knows nothing of us: its pid, its directory, and the environment of its user."""
    directory = tmp_path_factory.mktemp("stranger")
    runtime = directory / "runtime"
    runtime.mkdir(mode=0o700)
    seen = environment(XDG_RUNTIME_DIR=str(runtime), STETHOS_DIR=str(directory / "runs"))
    bare = {name: value for name, value in seen.items() if name != "PYTHONPATH" and not name.startswith("STETHOS")}
    process = start_program("live_training.py", "main", directory, cwd=directory, env=bare)
    try:
        wait_until((directory / "checkpoint.pt").exists, "its start")
        yield process.pid, directory, seen
    finally:
        (directory / "stop").touch()
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0 and len(out.split()) == 1, err


def test_a_stranger_is_recorded_and_left_as_it_was(
    stranger: tuple[int, Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, directory, seen = stranger
    monkeypatch.setenv("XDG_RUNTIME_DIR", seen["XDG_RUNTIME_DIR"])
    before = set(Path(f"/proc/{pid}/task").iterdir())
    told = command("attach", str(pid), "--name", "first", env=seen)
    assert told.returncode == 0 and "(by hypno)" in told.stdout, told.stderr
    assert "observed already" in command("attach", str(pid), env=seen).stdout

    found = live_process(pid)
    assert found is not None and found.run == "first"
    reply = ask(found, "eval", code="trainer.current_step, type(model).__name__", wait_s=60.0, timeout_s=DEADLINE_S)
    assert reply["where"] == "step" and "Sequential" in reply["value"]
    assert ask(found, "eval", code=_STATE)["output"].startswith("[1, 1, ")

    told = command("detach", str(pid), env=seen)
    assert told.returncode == 0 and "on its own again" in told.stdout and told.stderr == ""
    wait_until(lambda: set(Path(f"/proc/{pid}/task").iterdir()) <= before, "the end of the agent")
    assert live_process(pid) is None and list((Path(seen["XDG_RUNTIME_DIR"]) / "stethos").iterdir()) == []

    # Once more: the same process, a second run, and a look at what the first has left behind.
    assert command("attach", str(pid), "--name", "second", "--json", env=seen).returncode == 0
    again = live_process(pid)
    assert again is not None and again.run == "second"
    assert ask(again, "eval", code=_STATE)["output"].startswith(
        "[1, 1, 'torch.autograd', 'torch.utils.data.dataloader', False]"
    )
    assert command("detach", str(pid), env=seen).returncode == 0
    rows = json.loads(
        command("query", "SELECT count(*) AS n, max(lr) AS lr FROM steps", "-t", "first", "--json", env=seen).stdout
    )
    assert rows[0]["n"] > 0 and rows[0]["lr"] == 0.01
    assert (directory / "checkpoint.pt").exists()


def test_without_an_injector_the_way_to_get_one_is_named(
    stranger: tuple[int, Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pid, _, seen = stranger
    monkeypatch.setenv("XDG_RUNTIME_DIR", seen["XDG_RUNTIME_DIR"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ladder.LiveError, match="hypno is not installed") as error:
        ladder.attach(pid, tmp_path / "run", "light", 0.01)
    assert 'pip install "stethos[attach]"' in error.value.hint and "backtrace" in error.value.hint


def test_the_version_of_an_interpreter_is_read_from_its_files() -> None:
    process = start("-c", "input()")
    try:
        wait_until(lambda: ladder.is_python(process.pid), "its start")
        assert wait_until(lambda: ladder.python_version_of(process.pid), "its libraries") == sys.version_info[:2]
    finally:
        process.communicate("\n")
    assert ladder.python_version_of(process.pid) is None


def test_a_process_that_never_pauses_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process = start("-c", "print(flush=True)\nwhile True: pass")
    try:
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setattr(injection, "_PATIENCE_S", 0.2)
        with pytest.raises(ladder.LiveError, match="computes without a pause"):
            ladder.attach(process.pid, tmp_path / "run", "light", 0.01)
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("scope", "owner", "container", "words"),
    [(1, 1000, False, "sudo sysctl kernel.yama.ptrace_scope=0"), (2, 1000, False, "CAP_SYS_PTRACE"),
     (None, 1001, False, "belongs to uid 1001"), (None, 1000, True, "--cap-add SYS_PTRACE"),
     (None, None, False, "has ended")],
)  # fmt: skip
def test_the_missing_permission_is_named_with_the_way_to_grant_it(
    monkeypatch: pytest.MonkeyPatch, scope: int | None, owner: int | None, container: bool, words: str
) -> None:
    monkeypatch.setattr(permission.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(permission, "owner_of", lambda pid: owner)
    monkeypatch.setattr(permission, "has_ptrace", lambda: False)
    monkeypatch.setattr(permission, "ptrace_scope", lambda: scope)
    monkeypatch.setattr(permission, "is_in_container", lambda: container)
    assert words in permission.why_not_readable(4711)
