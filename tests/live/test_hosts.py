"""Tasks of a batch job with SLURM's variables: joined in one run where they share a directory, and on two "hosts",
each with its own registry, runs and gateway, asked together."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import DEADLINE_S, PROGRAMS, environment, start_command, wait_until

from stethos.cli.main import main
from stethos.store.run import open_run

RUN = "slurm-77-0"
Ask = Callable[..., tuple[int, str, str]]


class Host:
    """What a machine has of its own, as far as Stethos is concerned."""

    def __init__(self, directory: Path, runs: Path) -> None:
        self.directory, self.runs = directory, runs
        directory.mkdir(mode=0o700, exist_ok=True)
        self.variables = {
            "XDG_RUNTIME_DIR": str(directory), "XDG_CONFIG_HOME": str(directory / "config"), "HOME": str(directory),
        }  # fmt: skip
        self._processes: list[subprocess.Popen[str]] = []

    def start_task(self, number: int, size: int) -> None:
        """As `srun` does for each task."""
        slurm = {"JOB_ID": "77", "STEP_ID": "0", "PROCID": str(number), "NTASKS": str(size), "LOCALID": "0"}
        self._processes.append(
            start_command(
                "run", "--quiet", "--dir", self.runs, PROGRAMS / "batch_task.py", self.directory,
                env=environment(**self.variables, **{f"SLURM_{name}": value for name, value in slurm.items()}),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip

    def start_gateway(self) -> str:
        """Its address."""
        gateway = start_command(
            "gateway", "--listen", "127.0.0.1:0", "--dir", self.runs, env=environment(**self.variables),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self._processes.append(gateway)
        assert gateway.stderr is not None
        said = gateway.stderr.readline()
        found = re.search(r"gateway on (127\.0\.0\.1:\d+)", said)
        assert found, said + gateway.stderr.read()
        return found[1]

    def token(self, right: str) -> Path:
        (found,) = (self.directory / "config").rglob(f"{right}.token")
        return found

    def close(self) -> None:
        (self.directory / "end").touch()
        for process in self._processes:
            if "gateway" in process.args:
                process.terminate()
            try:
                process.wait(DEADLINE_S)
            finally:
                process.kill()
                process.communicate()


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run `stethos WORDS` here; its status, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(list(words))
        out, err = capsys.readouterr()
        return status, out, err

    return run


def tasks_in(run: Path) -> list[tuple[int, float]]:
    """Rank, and the number that the program saw."""
    if not (run / "run.json").exists():
        return []
    with open_run(run) as one:
        return one.rows("SELECT rank, value FROM metrics WHERE name = 'task' ORDER BY rank").values


# One file system ------------------------------------------------------------------------------------------------------


def test_tasks_of_a_batch_job_join_one_run(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path / "host", tmp_path / "runs")
    try:
        for number in range(2):
            host.start_task(number, 2)
        wait_until(lambda: tasks_in(host.runs / RUN) == [(0, 0.0), (1, 1.0)], "both tasks")
        assert [path.name for path in host.runs.iterdir()] == [RUN]
        with open_run(host.runs / RUN) as run:
            ranks = {(row["rank"], row["world_size"]) for row in run.processes()}
        assert ranks == {(0, 2), (1, 2)}
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(host.directory))
        target = f"{host.runs / RUN}/all"
        status, out, err = ask("-t", target, "query", "--json", "SELECT value FROM metrics")
        assert (status, err) == (0, "")
        assert [(row["rank"], row["value"]) for row in json.loads(out)] == [(0, 0.0), (1, 1.0)]
        status, out, err = ask("-t", target, "backtrace")
        assert (status, err) == (0, f"run {RUN} of {host.runs}\n")
        assert "[ranks 0-1]" in out and "wait_for_end (batch_task.py:" in out
    finally:
        host.close()


# Two machines ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Host]]:
    """Two that share nothing, by the address of their gateway; rank 0 runs on the first, rank 1 on the second."""
    place = tmp_path_factory.mktemp("hosts")
    both = [Host(place / name, place / name / "runs") for name in ("node1", "node2")]
    try:
        for number, host in enumerate(both):
            host.start_task(number, 2)
        yield {host.start_gateway(): host for host in both}
    finally:
        for host in both:
            host.close()


@pytest.fixture
def together(hosts: dict[str, Host]) -> tuple[str, ...]:
    """The options that name both gateways, and a token for each."""
    for number, host in enumerate(hosts.values()):
        wait_until(lambda n=number, h=host: tasks_in(h.runs / RUN) == [(n, float(n))], f"task {number}")
    tokens = ",".join(str(host.token("read")) for host in hosts.values())
    return "-t", ",".join(f"{address}/{RUN}/all" for address in hosts), "--token-file", tokens


def test_a_query_goes_to_both_hosts_and_its_rows_come_as_one(ask: Ask, together: tuple[str, ...]) -> None:
    sql = "SELECT value FROM metrics WHERE name = 'task'"
    status, out, err = ask(*together, "query", "--json", sql)
    assert status == 0, err
    assert [(row["rank"], row["value"]) for row in json.loads(out)] == [(0, 0.0), (1, 1.0)]
    assert err.count("rank 1 is missing: it has not joined the run") == 1  # as far as the first host knows
    assert err.count("rank 0 is missing: it has not joined the run") == 1


def test_backtraces_of_both_hosts_stand_under_their_addresses(
    ask: Ask, together: tuple[str, ...], hosts: dict[str, Host]
) -> None:
    status, out, err = ask(*together, "backtrace")
    assert status == 0, err
    first, second = (out.index(address) for address in hosts)
    assert first < out.index("[rank 0]") < second < out.index("[rank 1]")
    assert out.count("wait_for_end (batch_task.py:") == 2


def test_a_host_that_does_not_answer_is_said_and_the_other_is_shown(
    ask: Ask, hosts: dict[str, Host], together: tuple[str, ...]
) -> None:
    (address, host), *_ = hosts.items()
    targets = f"127.0.0.1:1/{RUN}/all,{address}/{RUN}/all"
    status, out, err = ask("-t", targets, "--token-file", str(host.token("read")), "query", "--json", "SELECT 7 AS x")
    assert status == 6
    assert "127.0.0.1:1: " in err
    assert [row["x"] for row in json.loads(out)] == [7]


def test_a_token_of_the_other_host_opens_nothing(ask: Ask, hosts: dict[str, Host]) -> None:
    first, second = hosts.items()
    status, _, err = ask("-t", first[0], "--token-file", str(second[1].token("act")), "ls")
    assert (status, "certificate" in err) == (6, True)


def test_the_number_of_tokens_must_fit(ask: Ask, hosts: dict[str, Host]) -> None:
    targets = ",".join([*hosts, "127.0.0.1:1"])
    status, _, err = ask("-t", targets, "--token-file", "a,b", "ls")
    assert (status, "2 token files for 3 gateways" in err) == (2, True)
