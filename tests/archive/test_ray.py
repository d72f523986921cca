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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from fleet_runs import ASKED, DOCUMENTED, archive_fleet, plain
from object_store import BUCKET, KEYS, s3_server
from processes import SOURCE, command, drainers_of, free_port, wait_until

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


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A fleet on an S3 server: the server's URL, the fleet's address."""
    directory = tmp_path_factory.mktemp("stored")
    with s3_server(directory / "s3") as url, pytest.MonkeyPatch.context() as patch:
        _use(url, directory, patch)
        patch.setenv("XDG_RUNTIME_DIR", str(directory))  # its locks are not those of other tests
        address = f"s3://{BUCKET}/fleet"
        archive_fleet(directory / "runs", parse_address(address))
        yield url, address


@pytest.fixture
def stored(fleet: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its address, with nothing of it on this machine."""
    _use(fleet[0], tmp_path, monkeypatch)
    return fleet[1]


def _use(url: str, directory: Path, patch: pytest.MonkeyPatch) -> None:
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": url, "XDG_CACHE_HOME": str(directory / "cache")}).items():
        patch.setenv(name, value)


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
        timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"},
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


# In a cluster's server for clients. Each client's process gets one of our ports: clusters side by side would all take
# Ray's own, 23000 and on, and two processes may listen on one. As often as a file says, such a process ends before it
# is up; the server would then wait 40 s for its log.
_SERVER = """
import os, sys

dies = False

def before():
    global dies
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "start_specific_server":
        frame = frame.f_back
    if frame is None:
        dies = False
        return
    with open({path!r}) as file:
        left = int(file.read())
    dies = left > 0
    if dies:  # Ray would keep the connection for half a minute
        grace = frame.f_back.f_locals["self"].reconnect_grace_periods
        grace.update(dict.fromkeys(grace, 2))
    proxier.CHECK_CHANNEL_TIMEOUT_S = 0.1 if dies else 120.0
    if dies:
        with open({path!r}, "w") as file:
            file.write(str(left - 1))

def in_child():
    if dies:
        os._exit(1)

if sys.orig_argv[1:3] == ["-m", "ray.util.client.server"] and "--mode=proxy" in sys.orig_argv:
    from ray.util.client.server import proxier

    made = proxier.ProxyManager.__init__

    def make(self, *words, **named):
        made(self, *words, **named)
        self._free_ports = {ports!r}

    proxier.ProxyManager.__init__ = make
    proxier.LOGSTREAM_RETRIES = 1
    os.register_at_fork(before=before, after_in_child=in_child)
"""


class RayCluster:
    """A Ray cluster of processes of its own."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._failures = logs / "failures"
        self.fail_clients(0)
        served = [free_port() for _ in range(12)]
        (logs / "sitecustomize.py").write_text(_SERVER.format(path=str(self._failures), ports=served))
        for attempt in range(3):
            self._door = free_port()
            self._start()
            wait_until(lambda: _listens(self._door) or self._process.poll() is not None, "a Ray cluster")
            if self._process.poll() is None:
                break
            assert attempt < 2, "Ray does not start"  # a port was taken
        self.address = f"ray://127.0.0.1:{self._door}"

    def _start(self) -> None:
        own = ("port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port", "runtime-env-agent-port",
               "metrics-export-port", "node-manager-port", "object-manager-port")  # fmt: skip
        ports = [f"--{name}={free_port()}" for name in own]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *ports,
             f"--ray-client-server-port={self._door}", "--min-worker-port=0", "--max-worker-port=0",
             "--include-dashboard=false", "--num-cpus=2",
             "--object-store-memory=100000000", "--disable-usage-stats", f"--temp-dir={self.logs}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(self.logs), str(SOURCE))),
                 "GRPC_ENABLE_FORK_SUPPORT": "0",  # else one in twenty of what the server forks dies in gRPC
                 "RAY_worker_niceness": "0"},  # else workers hardly run beside other tests
        )  # fmt: skip

    def fail_clients(self, times: int) -> None:
        """Let the next processes that the server starts end at once."""
        self._failures.write_text(str(times))

    def failures_left(self) -> int:
        return int(self._failures.read_text())

    def written(self) -> list[bytes]:
        """What is in its logs."""
        return [path.read_bytes() for path in self.logs.rglob("*") if path.is_file() and not path.is_symlink()]

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what of it did not end


@contextmanager
def cluster() -> Iterator[RayCluster]:
    logs = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # its sockets' paths must be short
    started = None
    try:
        started = RayCluster(logs)
        yield started
    finally:
        if started is not None:
            started.end()
        shutil.rmtree(logs, ignore_errors=True)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_cluster_elsewhere_works_on_an_archive_and_writes_its_keys_nowhere(stored: str) -> None:
    with cluster() as there:
        there.fail_clients(1)
        asked = command("query", "--over", stored, "--engine", there.address, ASKED[0], "--json")
        assert asked.returncode == 0, asked.stderr
        assert there.failures_left() == 0  # it was served by the second process
        looked = command("diagnose", "--over", stored, "--on", there.address, "--json")
        written = there.written()
        there.fail_clients(99)
        refused = command("diagnose", "--over", stored, "--on", there.address)
    here = stethos.archive(stored).sql(ASKED[0]).select(["run", "steps"]).to_pylist()
    assert [{"run": row["run"], "steps": row["steps"]} for row in json.loads(asked.stdout)] == here != []
    assert looked.returncode == 1 and "NUM001" in looked.stdout, looked.stderr
    assert any(b"runtime env" in text for text in written)  # it does write down what a job is given
    assert not any(KEYS["AWS_SECRET_ACCESS_KEY"].encode() in text for text in written)
    assert refused.returncode == 9 and "cannot use the Ray cluster at ray://" in refused.stderr, refused.stderr
    assert len(refused.stderr.splitlines()) == 2 and "hint: " in refused.stderr
    assert "GRPC_ENABLE_FORK_SUPPORT=0" in refused.stderr  # what mends it where it is gRPC's fault


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
