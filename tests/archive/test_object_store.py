"""Archives on a real S3 server in a process of its own: works, fails, vanishes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import T0_NS, RunBuilder
from federated_rows import put_steps
from fleet_runs import archive_fleet
from object_store import BUCKET, KEYS, environment, failing_proxy, make_bucket, s3_server
from processes import wait_until

import stethos
from stethos.archive.address import parse_address
from stethos.archive.committer import archive_run
from stethos.cli.main import main
from stethos.errors import ArchiveError, RunNotFoundError

SECRET = KEYS["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("store") / "s3") as url:
        yield url


@pytest.fixture
def bucket(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty place in the store."""
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": server}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"s3://{BUCKET}/{tmp_path.name}"


@pytest.fixture
def ended(run: RunBuilder) -> RunBuilder:
    process = run.process("p0", is_alive=False)
    process.steps(20)
    process.seal()
    process.metric("accuracy", 0.5)
    process.finish()
    return run


def count_in(address: str) -> int:
    with stethos.open_run(f"{address}/demo") as run:
        return int(run.rows("SELECT count(*) FROM steps").values[0][0])


def test_a_run_goes_to_the_store_and_is_read_there(
    bucket: str, ended: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["archive", "-t", str(ended.path), "--to", bucket]
    child = subprocess.run(
        [sys.executable, "-m", "stethos.cli.main", *words], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    assert main(["ls", bucket]) == 0
    assert "demo" in capsys.readouterr().out
    assert main(["-t", f"{bucket}/demo", "query", "--csv", "SELECT count(*) AS n, max(step) AS last FROM steps"]) == 0
    assert capsys.readouterr().out == "n,last\n20,19\n"
    with stethos.open_run(f"{bucket}/demo") as run, stethos.open_run(ended.path) as local:
        query = "SELECT * FROM steps ORDER BY step"
        assert run.sql(query).equals(local.sql(query))
        assert not list((tmp_path / "cache").rglob("*.metrics.parquet"))  # only what was asked for was fetched
    assert main(["compare", str(ended.path), f"{bucket}/demo"]) == 0
    assert main(["rm", f"{bucket}/demo", "--yes"]) == 0
    with pytest.raises(RunNotFoundError):
        stethos.open_run(f"{bucket}/demo")
    everything = child.stdout + child.stderr + "".join(capsys.readouterr())
    kept = [path for place in ("cache", "runs") for path in (tmp_path / place).rglob("*") if path.is_file()]
    assert SECRET not in everything and not any(SECRET.encode() in path.read_bytes() for path in kept)


def test_a_query_about_one_round_fetches_the_files_of_that_round(bucket: str, tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "runs" / "demo") as run:
        process = run.process("p0", is_alive=False)
        for number in range(4):
            put_steps(process, 5, T0_NS, client="c1", round=number, first=5 * number)
            process.seal()
        process.finish()
        archive_run(run.place, parse_address(bucket))
    with stethos.open_run(f"{bucket}/demo") as there:
        assert there.rows("SELECT count(*) FROM steps WHERE round = 2").values == [(5,)]
        assert len(list((tmp_path / "cache").rglob("*.steps.parquet"))) == 1
        assert there.rows("SELECT count(*), sum(round) FROM steps").values == [(20, 30)]
        assert there.rows("SELECT count(*) FROM steps WHERE round = 7").values == [(0,)]
    over = "SELECT run, count(*) AS n FROM steps WHERE round BETWEEN 1 AND 2 GROUP BY run"
    for engine in ("duckdb", "daft"):
        assert stethos.archive(bucket).sql(over, engine=engine).to_pylist() == [{"run": "demo", "n": 10}]
    assert len(list((tmp_path / "cache").rglob("*/steps/*.parquet"))) == 2


def test_every_call_of_the_store_may_fail(
    bucket: str, server: str, ended: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call fails for good: an error in words or nothing, then the same rows."""
    monkeypatch.setattr("stethos.archive.address._ATTEMPTS", 1)
    calls: list[str] = []
    with failing_proxy(server, lambda _, method, path: calls.append(method)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy)
        archive_run(ended.place, parse_address(f"{bucket}/counted"))
    assert len(calls) > 10
    failures = 0
    for first in range(1, len(calls), 9):
        where = f"{bucket}/{first}"
        with failing_proxy(
            server, lambda number, *_, first=first: (500, 0)[first % 2] if number == first else None
        ) as url:
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            try:
                archive_run(ended.place, parse_address(where))
            except ArchiveError:
                failures += 1
        monkeypatch.setenv("AWS_ENDPOINT_URL", server)
        archive_run(ended.place, parse_address(where))
        assert count_in(where) == 20
        assert len(stethos.archive(where).runs()) == 1
    assert failures


def test_a_slow_store_that_fails_now_and_then_is_tried_again(
    bucket: str, server: str, ended: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(number: int, method: str, path: str) -> int | None:
        time.sleep(0.05)
        return 503 if number % 13 == 0 else None

    with failing_proxy(server, answer) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy)
        archive_run(ended.place, parse_address(bucket))
        assert count_in(bucket) == 20


@pytest.mark.parametrize("status", [400, 500, 503])
def test_a_store_that_fails_is_not_taken_for_a_damaged_log(
    bucket: str, server: str, ended: RunBuilder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    status: int,
) -> None:  # fmt: skip
    """Whoever is told that the log is damaged deletes it."""
    monkeypatch.setattr("stethos.archive.address._ATTEMPTS", 1)
    archive_run(ended.place, parse_address(bucket))
    with failing_proxy(server, lambda _, method, path: status if "_delta_log" in path else None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy)
        for words in (["ls", bucket], ["archive", "-t", str(ended.path), "--to", bucket]):
            assert main(words) == 8
            said = capsys.readouterr().err
            assert f"the store answers {status}" in said and "try again" in said and "delete" not in said


def test_a_store_that_fails_within_a_diagnosis_makes_no_run_healthy(
    bucket: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stethos.archive.address._ATTEMPTS", 1)
    archive_fleet(tmp_path / "runs", parse_address(bucket))
    assert main(["-t", f"{bucket}/fed", "diagnose", "--json"]) == 0
    healthy = json.loads(capsys.readouterr().out)
    shutil.rmtree(tmp_path / "cache")
    with failing_proxy(server, lambda _, method, path: 500 if "/client_reports/client-1" in path else None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy)
        assert main(["-t", f"{bucket}/fed", "diagnose"]) == 8
        said = capsys.readouterr()
        assert "cannot read s3://" in said.err and "healthy" not in said.out
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    assert main(["-t", f"{bucket}/fed", "diagnose", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_checked"] == healthy["not_checked"]


@pytest.fixture
def silent() -> Iterator[str]:
    """A store that takes every call and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_ctrl_c_ends_a_command_that_waits_for_a_store(bucket: str, silent: str, ended: RunBuilder) -> None:
    """Python hears of it only when the library has given up: 80 s, before 4 minutes."""
    words = [sys.executable, "-c", "from stethos.cli.main import console; console()"]
    for more in (["archive", "-t", str(ended.path), "--to", bucket], ["-t", f"{bucket}/demo", "diagnose"]):
        with subprocess.Popen([*words, *more], env=environment(silent), stderr=subprocess.PIPE) as child:
            wait_until(lambda pid=child.pid: has_connection(pid), "the first call")
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=60)
        assert child.returncode == 130 and b"Traceback" not in said


def has_connection(pid: int) -> bool:
    """Whether a process has a socket."""
    try:
        return any(os.readlink(one).startswith("socket:") for one in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def test_a_store_that_is_down_is_an_error_in_words(
    bucket: str, ended: RunBuilder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert main(["archive", "-t", str(ended.path), "--to", bucket]) == 8
    said = capsys.readouterr().err
    assert "hint: check the network" in said and SECRET not in said


@pytest.mark.parametrize("endpoint", ["hush-hush", "http://user:hush-hush@127.0.0.1:9", "ftp://hush-hush", "http://"])
def test_an_endpoint_that_is_none_is_an_error_in_words(
    bucket: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], endpoint: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert main(["ls", bucket]) == 2
    said = capfd.readouterr().err
    assert "endpoint" in said and "hint: " in said and "hush-hush" not in said and "panicked" not in said


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
def test_wrong_credentials_are_an_error_in_words(
    bucket: str, ended: RunBuilder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv(name, "hush-hush")
    for words in (["archive", "-t", str(ended.path), "--to", bucket], ["ls", bucket]):
        assert main(words) == 8
        said = capsys.readouterr().err
        assert "access is denied" in said and "AWS_ACCESS_KEY_ID" in said and "hush-hush" not in said


def test_missing_credentials_are_an_error_in_words(
    bucket: str, ended: RunBuilder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # and no files of AWS's tools
    assert main(["archive", "-t", str(ended.path), "--to", bucket]) == 8
    assert "AWS_ACCESS_KEY_ID" in capsys.readouterr().err


def test_credentials_may_be_in_the_files_of_aws(
    bucket: str, ended: RunBuilder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name)
    wrong, right = (
        "aws_access_key_id = nobody\naws_secret_access_key = none\n",
        "[team]\naws_access_key_id = testing\n",
    )
    (tmp_path / "credentials").write_text(f"[default]\n{wrong}{right}aws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    assert main(["archive", "-t", str(ended.path), "--to", bucket]) == 8
    monkeypatch.setenv("AWS_PROFILE", "team")
    assert main(["archive", "-t", str(ended.path), "--to", bucket]) == 0
    assert count_in(bucket) == 20
    assert stethos.archive(bucket).sql("SELECT count(*) AS n FROM steps", engine="daft").to_pylist() == [{"n": 20}]


def test_a_bucket_that_vanishes_is_an_error_in_words(
    bucket: str, server: str, ended: RunBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = bucket.replace(BUCKET, "stethos-vanishing")
    archiving = ["archive", "-t", str(ended.path), "--to", lost]
    assert main(archiving) == 8
    assert "there is no such bucket" in capsys.readouterr().err
    files = make_bucket(server, "stethos-vanishing")
    assert main(archiving) == 0
    files.delete_dir("stethos-vanishing")
    capsys.readouterr()
    for words in (archiving, ["ls", lost], ["-t", f"{lost}/demo", "query", "SELECT 1 FROM steps"]):
        assert main(words) in (3, 8)
        assert "hint: " in capsys.readouterr().err


def test_the_cache_is_bounded(bucket: str, ended: RunBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive_run(ended.place, parse_address(bucket))
    sizes = sorted(path.stat().st_size for path in ended.path.glob("*/*.parquet"))
    monkeypatch.setenv("STETHOS_CACHE_BYTES", str(max(sizes) + 1))
    assert count_in(bucket) == 20
    with stethos.open_run(f"{bucket}/demo") as run:
        assert run.rows("SELECT count(*) FROM metrics").values == [(1,)]
    here = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.parquet"))
    assert here <= max(sizes) + 1
    monkeypatch.setenv("STETHOS_CACHE_BYTES", "10")
    with stethos.open_run(f"{bucket}/demo") as run, pytest.raises(ArchiveError, match="cache holds"):
        run.rows("SELECT count(*) FROM steps, metrics")


def test_a_run_is_archived_while_it_goes_on(bucket: str, server: str, tmp_path: Path, runs_dir: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import stethos\nfor i in range(5): stethos.log(loss=i)\n")
    words = ["run", "--name", "followed", "--archive", bucket, str(script)]
    child = subprocess.run(
        [sys.executable, "-m", "stethos.cli.main", *words], env=environment(server), check=False, timeout=300
    )
    assert child.returncode == 0
    until = time.monotonic() + 300
    while time.monotonic() < until:  # the archiver outlives the command by its last upload
        try:
            with stethos.open_run(f"{bucket}/followed") as run:
                if run.rows("SELECT count(*) FROM metrics").values == [(5,)]:
                    return
        except (RunNotFoundError, ArchiveError):
            pass
        time.sleep(0.5)
    pytest.fail("the run was not archived")


_WAITS = """
import os, time
import stethos
stethos.log(loss=1)
until = time.monotonic() + 240
while not os.path.exists("told") and time.monotonic() < until:
    time.sleep(0.1)
"""


def test_a_run_that_cannot_be_archived_says_so_while_it_goes_on_and_at_its_end(server: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_WAITS)
    words = ["run", "--name", "waits", "--archive", "s3://no-such-bucket/team", "train.py"]
    with subprocess.Popen(
        [sys.executable, "-m", "stethos.cli.main", *words], env=environment(server), cwd=tmp_path, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stderr is not None
        said = []
        for line in child.stderr:
            said.append(line)
            if "the training goes on" in line:
                (tmp_path / "told").touch()
    shutil.rmtree(tmp_path / "runs")  # ends the archiver, which would try again for ten minutes
    told = [line for line in said if line.startswith("stethos: not archived: ")]
    assert child.returncode == 0 and len(told) == 2, said
    assert all("there is no such bucket" in line for line in told)
    assert "the training goes on" in told[0] and "stethos archive -t runs/waits --to" in told[1]
    assert not any(SECRET in line for line in said)
