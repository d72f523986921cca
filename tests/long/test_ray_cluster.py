"""A Ray cluster of processes of its own, whose server for clients forks one for each: queries, diagnoses, and no keys.

It takes a minute of two cores, and Ray's own time limits are short for a busy machine, so `make test` has the same
without the forks: see archive/test_ray.
"""

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

import pytest
from fleet_runs import ASKED, archive_fleet
from object_store import BUCKET, KEYS, s3_server
from processes import SOURCE, command, free_port, wait_until

import stethos
from stethos.archive.address import parse_address


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fleet on an S3 server, with nothing of it on this machine."""
    with s3_server(tmp_path / "s3") as url:
        for name, value in (KEYS | {"AWS_ENDPOINT_URL": url, "XDG_CACHE_HOME": str(tmp_path / "cache")}).items():
            monkeypatch.setenv(name, value)
        address = f"s3://{BUCKET}/fleet"
        archive_fleet(tmp_path / "runs", parse_address(address))
        yield address


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
