"""What runs on Ray gives what it gives here: Daft over an object store, diagnoses, proofs, bisections, replays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fleet_runs import ASKED, DOCUMENTED, archive_fleet, plain
from object_store import BUCKET, KEYS, s3_server
from processes import command, drainers_of, free_port, wait_until

import stethos
from stethos import lab
from stethos.archive.address import parse_address
from stethos.cli.main import main
from stethos.cluster import ClusterError, check_place, run_calls
from stethos.errors import UsageError
from stethos.guard import tried

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "on_ray.py"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small captured federation in which one client turns its updates."""
    path = lab.federate(
        "digits", rounds=4, clients=4, faults=[lab.Fault("sign-flip", clients="c1", start=2, strength=6.0)],
        capture="all", dir=tmp_path_factory.mktemp("ray"), run="turned", progress=False,
    ).path  # fmt: skip
    assert path is not None
    wait_until(lambda: not drainers_of(path), "the end of packing", deadline_s=240)
    return path


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fleet on an S3 server."""
    with s3_server(tmp_path / "s3") as url:
        for name, value in (KEYS | {"AWS_ENDPOINT_URL": url, "XDG_CACHE_HOME": str(tmp_path / "cache")}).items():
            monkeypatch.setenv(name, value)
        address = f"s3://{BUCKET}/fleet"
        archive_fleet(tmp_path / "runs", parse_address(address))
        yield address


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    main(words)
    return json.loads(capsys.readouterr().out)


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(one) for name, one in value.items() if name not in ("duration_s", "duration_ms")}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def test_what_runs_on_ray_is_what_runs_here(
    stored: str, federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["-t", str(federation), "--json"]
    commands = [
        ["prove", "c1", "--seeds", "2", *target],
        ["bisect", "--round", "2", *target],
        ["blame", "--input", "3", *target],
        ["replay", "--round", "2", "--all", *target],
    ]
    expected = {sql: stethos.archive(stored).sql(sql) for sql in [*ASKED, *DOCUMENTED]}
    queries = [sql for sql in expected if tried(stethos.archive(stored).sql, sql, engine="daft")[1] is None]
    assert set(ASKED) <= set(queries)  # the others are refused by Daft before they start: see test_fleet
    job = {"archive": stored, "queries": queries, "commands": commands, "marker": str(tmp_path / "died")}
    child = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), json.dumps(job)], capture_output=True, text=True, check=False,
        timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-3000:]
    found = json.loads(child.stdout.strip().splitlines()[-1])
    for kept in federation.glob("proofs/*"):  # proved again from the beginning
        kept.unlink()
    for words, there in zip(commands, found["commands"], strict=True):
        here = without_times(printed(words, capsys))
        assert here and without_times(there) == here, words
    for sql, rows in zip(queries, found["tables"], strict=True):
        assert rows == plain(expected[sql]), sql
    assert found["verdicts"] == {row["run"]: row["verdict"] for row in stethos.archive(stored).runs()}
    assert found["lost"] == [[0, 42]] and (tmp_path / "died").exists()
    assert "longer than 1 s" in found["late"]


@contextmanager
def cluster() -> Iterator[tuple[str, Path]]:
    """A Ray cluster of processes of its own: its address, and where it writes its logs."""
    logs = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # its sockets' paths must be short
    door = free_port()
    own = ("port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port", "runtime-env-agent-port",
           "metrics-export-port", "node-manager-port", "object-manager-port")  # fmt: skip
    ports = [f"--{name}={free_port()}" for name in own]
    process = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--ray-client-server-port={door}",
         *ports, "--include-dashboard=false", "--num-cpus=2", "--disable-usage-stats", f"--temp-dir={logs}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        wait_until(lambda: _listens(door), "a Ray cluster", deadline_s=240)
        yield f"ray://127.0.0.1:{door}", logs
    finally:
        process.terminate()
        process.wait(60)
        os.killpg(process.pid, signal.SIGKILL)  # what of it did not end
        shutil.rmtree(logs, ignore_errors=True)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_cluster_elsewhere_works_on_an_archive_and_writes_its_keys_nowhere(stored: str) -> None:
    with cluster() as (address, logs):
        asked = command("query", "--over", stored, "--engine", address, ASKED[0], "--json")
        assert asked.returncode == 0, asked.stderr
        looked = command("diagnose", "--over", stored, "--on", address, "--json")
        written = [path.read_bytes() for path in logs.rglob("*") if path.is_file() and not path.is_symlink()]
    here = stethos.archive(stored).sql(ASKED[0]).select(["run", "steps"]).to_pylist()
    assert [{"run": row["run"], "steps": row["steps"]} for row in json.loads(asked.stdout)] == here != []
    assert looked.returncode == 1 and "NUM001" in looked.stdout, looked.stderr
    assert any(b"runtime env" in text for text in written)  # it does write down what a job is given
    assert not any(KEYS["AWS_SECRET_ACCESS_KEY"].encode() in text for text in written)


@pytest.mark.parametrize("where", ["spark://host:1", "ray://user:secret@host:1", "somewhere", "ray://", "ray://host:x"])
def test_a_place_that_is_no_cluster_is_refused(where: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_place(where)
    assert "secret" not in str(caught.value)


def test_a_cluster_that_is_not_there_is_told_at_once() -> None:
    """Ray itself waits for half a minute, and warns."""
    with pytest.raises(ClusterError, match="refused") as caught:
        list(run_calls(len, [("ab",)], "ray://127.0.0.1:9"))
    assert caught.value.hint


def test_without_ray_the_command_says_what_to_install(
    federation: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["blame", "--input", "3", "-t", str(federation), "--on", "local"]) == 2
    assert "stethos[ray]" in capsys.readouterr().err
