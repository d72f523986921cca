"""Torch is the user's own: reading works on a machine that does not have it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from builders import RunBuilder

import stethos
from stethos.cli.main import COMMANDS

BLOCKED = f"""
import importlib.abc, sys
sys.path.insert(0, {str(Path(stethos.__file__).resolve().parents[1])!r})

class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("torch."):
            raise ImportError(name + " is not installed")

sys.meta_path.insert(0, NoTorch())
"""
READING = {
    "diagnose": ["diagnose"],
    "profile": ["profile"],
    "compare": ["compare", "demo", "demo"],
    "ls": ["ls"],
    "tables": ["tables"],
    "query": ["query", "SELECT count(*) FROM steps, modules"],
    "rounds": ["rounds"],
    "clients": ["clients"],
    "compare-clients": ["compare-clients", "c1", "c2"],
    "collectives": ["collectives"],
    "actions": ["actions"],
    "export": ["export", "-o", "exported"],
    "report": ["report", "--format", "md"],
    "top": ["top", "--once"],
    "alert": ["alert", "status"],
    "doctor": ["doctor", "--verify"],
    "completion": ["completion", "--words", "rounds", "-t", ""],
    "archive": ["archive", "--to", "archived"],
    "diverge": ["diverge", "demo", "demo"],
    "policy": ["policy", "--level", "L2"],
    "rm": ["rm", "demo", "--yes", "--force"],
}


def without_torch(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code], cwd=directory, capture_output=True, text=True, check=False
    )


def test_the_block_works(tmp_path: Path) -> None:
    assert "torch is not installed" in without_torch("import torch", tmp_path).stderr


# These need a process that trains; `inspect` needs a file.
LIVE = {"backtrace", "eval", "repl", "lr", "clip", "gc", "checkpoint", "attach", "detach", "inspect", "sync", "gateway",
        "flame"}  # fmt: skip


def test_every_reading_command_is_tested_here() -> None:
    serves = {"run", "serve", "demo", "mcp", "collect", "enroll", "import"}
    trains = {"replay", "debug", "prove", "blame", "bisect"}
    assert set(READING) == set(COMMANDS) - serves - LIVE - trains


def test_the_package_and_its_names_can_be_imported(tmp_path: Path) -> None:
    result = without_torch("from stethos import log, open_run, span, watch; log(accuracy=1.0)", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_dashboard_can_be_imported(tmp_path: Path) -> None:
    result = without_torch("import stethos.web.serve, stethos.web.query_process, stethos.cli.serve", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.fixture(scope="module")
def statuses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """The exit status of each reading command and what it wrote to stderr, all in one process without torch."""
    directory = tmp_path_factory.mktemp("reading")
    with RunBuilder(directory / "runs" / "demo") as run:
        process = run.process()
        process.steps(5)
        process.modules(["fc1"])
        process.seal()
        code = f"""
import contextlib, io, json
from stethos.cli.main import main
found = {{}}
for name, words in {READING!r}.items():
    said, wrong = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
        status = main(words)
    found[name] = status, wrong.getvalue()
print(json.dumps(found))
"""
        result = without_torch(code, directory)
    assert (result.returncode, result.stderr) == (0, "")
    found: dict[str, tuple[int, str]] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", READING)
def test_a_reading_command_works(statuses: dict[str, tuple[int, str]], name: str) -> None:
    assert statuses[name] == [0, ""]
