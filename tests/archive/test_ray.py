"""What runs on Ray gives what it gives here: Daft over an object store, diagnoses, proofs, bisections, replays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_runs import ASKED, DOCUMENTED, archive_fleet, plain
from object_store import BUCKET, KEYS, s3_server
from processes import drainers_of, wait_until

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
    own = {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0", "RAY_ADDRESS": "127.0.0.1:1"}  # somebody else's cluster
    child = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), json.dumps(job)], capture_output=True, text=True, check=False,
        timeout=900, env={**os.environ, **own},
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
    _check_elsewhere(found["elsewhere"], expected[ASKED[0]].select(["run", "steps"]).to_pylist())


def _check_elsewhere(found: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """What commands said that came by an address to the same Ray, and what they told it."""
    status, out, err, failures = found["asked"]
    assert (status, failures) == (0, 0), err  # it was served the second time
    assert [{"run": row["run"], "steps": row["steps"]} for row in json.loads(out)] == steps != []
    status, out, err, _ = found["looked"]
    assert status == 1 and "NUM001" in out, err
    status, out, err, failures = found["refused"]
    assert status == 9 and "cannot use the Ray cluster at ray://" in err and out == "", err
    assert len(err.splitlines()) == 2 and "hint: " in err
    assert "GRPC_ENABLE_FORK_SUPPORT=0" in err  # what mends it where it is gRPC's fault
    assert failures == 99 - 5  # and no more
    # A cluster writes down what a client says of itself, and shows it to everybody.
    assert all("OMP_NUM_THREADS" in said for said in found["sent"]) and found["sent"]
    assert not any(KEYS["AWS_SECRET_ACCESS_KEY"] in said for said in found["sent"])


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
