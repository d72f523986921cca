"""Real NVFlare jobs in its simulator, whose training script knows nothing of us."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import PROGRAMS, environment, wait_for_rest

from stethos.store.run import Run, open_run

DEADLINE_S = 600
STEPS = 3  # of `programs/nvflare_train.py`
RUN = ("-m", "stethos.cli.main", "run", "--quiet")
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "nvflare.md").read_text(encoding="utf-8")
ERROR = "LocalDataError: shard 7 is unreadable"
CLIENTS = ("site-1", "site-2", "site-3")
TRAINED = [(client, number) for number in range(3) for client in CLIENTS if client != "site-3" or number == 0]


@dataclass(frozen=True, slots=True)
class Job:
    """A job that is over: the hashes of its final global model, and its run, if it was observed."""

    layers: dict[str, str]
    run: Run | None

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        assert self.run is not None
        return [tuple(row) for row in self.run.rows(query).values]


class Simulator:
    """A job in processes of its own, all in one group, in an empty directory."""

    def __init__(self, directory: Path, *words: str, prefix: tuple[str, ...] = ()) -> None:
        self.directory = directory
        own = environment(
            PATH=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])), HOME=str(directory),
            TMPDIR=str(directory), XDG_RUNTIME_DIR=str(directory), STETHOS_STRICT="1",
        )  # fmt: skip
        command = [sys.executable, *prefix, str(PROGRAMS / "nvflare_job.py"), str(directory), *words]
        with (directory / "out").open("w") as out, (directory / "err").open("w") as err:
            self._process = subprocess.Popen(
                command, cwd=directory, env=own, stdout=out, stderr=err, start_new_session=True
            )

    def job(self) -> Job:
        """What it left behind, after its end."""
        try:
            code = self._process.wait(timeout=DEADLINE_S)
        finally:
            self.stop()
        printed = (self.directory / "out").read_text()
        assert code == 0, printed[-3000:] + (self.directory / "err").read_text()[-3000:]
        path = self.directory / "runs" / "job"
        if path.exists():
            wait_for_rest(path)
        return Job(json.loads(printed.splitlines()[-1]), open_run(path) if path.exists() else None)

    def stop(self) -> None:
        """End what the simulator may have left running: clients, and trainers in sessions of their own."""
        for entry in os.listdir("/proc"):
            if entry.isdigit() and str(self.directory) in _command_of(int(entry)):
                _kill(int(entry))
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    return words if "nvflare" in words and "stethos.record.drainer" not in words else ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Job]]:
    """All jobs of this file at once, since they mostly wait; `observed` is also under `stethos run`."""
    wanted = {
        "faulty": ("--observe", "--faults", "site-2:nan:1,site-3:raise:1"),
        "bare": ("--recipe", "--diff", "--clients", "2", "--rounds", "2"),
        "observed": ("--recipe", "--diff", "--clients", "2", "--rounds", "2", "--observe"),
        "own_process": ("--external", "--clients", "2", "--rounds", "2", "--observe", "--faults", "site-2:raise:1"),
    }
    started = {}
    for name, words in wanted.items():
        directory = tmp_path_factory.mktemp(name)
        prefix = (*RUN, "--dir", str(directory / "runs"), "--name", "job") if name == "observed" else ()
        started[name] = Simulator(directory, *words, prefix=prefix)
    try:
        yield {name: simulator.job() for name, simulator in started.items()}
    finally:
        for simulator in started.values():
            simulator.stop()


@pytest.fixture(scope="module")
def faulty(jobs: dict[str, Job]) -> Job:
    """Three clients, three rounds: in the second, site-2 begins to send NaN in one layer, and site-3 raises."""
    return jobs["faulty"]


def test_nothing_of_ours_failed(jobs: dict[str, Job]) -> None:
    for name in ("faulty", "observed", "own_process"):
        assert jobs[name].rows("SELECT what, reason FROM gaps") == []
        assert jobs[name].rows("SELECT message FROM logs WHERE message LIKE '%handling event%'") == []


def test_rounds_count_as_nvflare_does(faulty: Job) -> None:
    rows = faulty.rows("SELECT round, federation, selected, reported, failed FROM rounds ORDER BY round")
    assert rows == [(0, "digits", 3, 3, 0), (1, "digits", 3, 2, 1), (2, "digits", 3, 2, 1)]
    timed = faulty.rows("SELECT duration_ms > aggregate_ms AND aggregate_ms > 0 AND wait_ms > 0 FROM rounds")
    assert timed == [(True,)] * 3


def test_the_layer_that_turned_to_nan_is_named_with_client_and_round(faulty: Job) -> None:
    first = faulty.rows(
        "SELECT round, client, layer, nan FROM updates WHERE nan > 0 AND layer IS NOT NULL AND round = "
        "(SELECT min(round) FROM updates WHERE nan > 0) ORDER BY client NULLS LAST"
    )
    assert first == [(1, "site-2", "head.weight", 16), (1, None, "head.weight", 16)]
    assert faulty.rows("SELECT round, global_nan FROM rounds ORDER BY round")[:2] == [(0, 0), (1, 16)]


def test_the_client_that_raised_is_named_with_round_and_traceback(faulty: Job) -> None:
    query = "SELECT client, round, error, traceback FROM client_rounds WHERE status <> 'ok' ORDER BY round"
    (client, number, error, trace), _ = faulty.rows(query)
    assert (client, number, error) == ("site-3", 1, ERROR)
    assert 'nvflare_train.py", line ' in trace and "in load_batch" in trace


def test_the_rounds_after_a_script_s_end_say_so(faulty: Job) -> None:
    query = "SELECT client, round, error, traceback FROM client_rounds WHERE status <> 'ok' ORDER BY round"
    _, (client, number, error, trace) = faulty.rows(query)
    assert (client, number, error) == ("site-3", 2, f"the training script had ended before: {ERROR}")
    assert "in load_batch" in trace


def test_the_server_knows_the_traceback_from_the_message_alone(faulty: Job) -> None:
    traces = faulty.rows("SELECT traceback FROM client_reports WHERE side = 'server' AND status = 'failed'")
    assert [ERROR in trace for (trace,) in traces] == [True, True]


def test_every_turn_has_its_times_traffic_and_losses(faulty: Job) -> None:
    rows = faulty.rows(
        "SELECT client, round, samples, steps, status FROM client_rounds WHERE download_ms > 0 AND compute_ms > 0 "
        "AND upload_ms > 0 AND wait_ms >= 0 AND duration_ms >= download_ms + compute_ms + upload_ms "
        "AND peak_bytes > 0 AND received_bytes > 0 ORDER BY round, client"
    )
    assert rows == [
        (client, number, STEPS, STEPS, "ok") if (client, number) in TRAINED else (client, number, None, None, "failed")
        for number in range(3)
        for client in CLIENTS
    ]
    losses = faulty.rows(
        "SELECT entry_loss > 0 AND exit_loss > 0 AND loss > 0 AND sent_bytes = raw_bytes "
        "FROM client_rounds WHERE status = 'ok'"
    )
    assert losses == [(True,)] * len(TRAINED)


def test_steps_and_logs_of_the_script_s_thread_carry_client_and_round(faulty: Job) -> None:
    steps = faulty.rows("SELECT client, round, count(*), count(DISTINCT process) FROM steps GROUP BY ALL ORDER BY 2, 1")
    assert steps == [(client, number, STEPS, 1) for client, number in TRAINED]
    logs = faulty.rows("SELECT client, round, message FROM logs WHERE logger = 'train' ORDER BY 2, 1")
    assert logs == [(client, number, f"trained on {client}") for client, number in TRAINED]


def test_processes_of_server_and_clients_are_in_one_run(faulty: Job) -> None:
    assert faulty.rows("SELECT state FROM processes") == [("ended",)] * 4
    assert faulty.rows("SELECT count(DISTINCT process) FROM rounds") == [(1,)]


def test_server_and_clients_share_one_trace_per_round(faulty: Job) -> None:
    traces = faulty.rows(
        "SELECT round, count(DISTINCT trace), count(DISTINCT process) FROM spans GROUP BY 1 ORDER BY 1"
    )
    assert traces == [(number, 1, 4) for number in range(3)]
    parents = faulty.rows(
        "SELECT child.name, parent.name, count(*) FROM spans child JOIN spans parent ON child.parent = parent.span "
        "AND child.trace = parent.trace WHERE child.client IS NOT NULL GROUP BY ALL ORDER BY ALL"
    )
    assert parents == [("client", "round", 9), ("compute", "client", 8), ("upload", "round", 9)]
    broken = faulty.rows("SELECT client, round, name FROM spans WHERE NOT ok")
    assert broken == [("site-3", 1, "compute")]


def test_the_global_model_is_the_same_to_the_last_bit(jobs: dict[str, Job]) -> None:
    """Of two clients: with more, NVFlare adds up in the order of arrival, and bits differ from run to run."""
    assert jobs["observed"].layers == jobs["bare"].layers
    assert jobs["bare"].run is None
    assert jobs["observed"].layers != jobs["faulty"].layers


def test_a_job_under_stethos_run_joins_that_run(jobs: dict[str, Job]) -> None:
    assert jobs["observed"].rows("SELECT round, reported FROM rounds ORDER BY 1") == [(0, 2), (1, 2)]
    steps = jobs["observed"].rows("SELECT client, round, count(*) FROM steps GROUP BY ALL ORDER BY 2, 1")
    assert steps == [(client, number, STEPS) for number in range(2) for client in CLIENTS[:2]]
    assert jobs["observed"].rows("SELECT round, count(DISTINCT trace) FROM spans GROUP BY 1 ORDER BY 1") == [
        (0, 1),
        (1, 1),
    ]


def test_a_recipe_s_differences_are_read_as_such(jobs: dict[str, Job]) -> None:
    """Half the sum of two clients' updates, by the law of cosines, is the change of the global model."""
    query = "SELECT round, client, norm, cos_centre FROM updates WHERE layer IS NULL ORDER BY round, client NULLS LAST"
    rows = jobs["observed"].rows(query)
    assert [(number, client) for number, client, *_ in rows] == [
        (number, client) for number in range(2) for client in ("site-1", "site-2", None)
    ]
    for number in range(2):
        (_, _, first, cosine), (_, _, second, _), (_, _, change, _) = rows[3 * number : 3 * number + 3]
        assert change == pytest.approx(math.sqrt(first**2 + second**2 + 2 * first * second * cosine) / 2, rel=1e-4)


def test_a_script_in_its_own_process_is_marked_and_joined(jobs: dict[str, Job]) -> None:
    job = jobs["own_process"]
    steps = job.rows("SELECT client, round, count(*) FROM steps GROUP BY ALL ORDER BY 2, 1")
    assert steps == [("site-1", 0, STEPS), ("site-2", 0, STEPS), ("site-1", 1, STEPS)]
    assert job.rows("SELECT count(DISTINCT process) FROM steps JOIN client_reports USING (process)") == [(2,)]
    assert job.rows("SELECT round, count(DISTINCT trace) FROM spans GROUP BY 1 ORDER BY 1") == [(0, 1), (1, 1)]
    times = job.rows(
        "SELECT bool_and(duration_ms > compute_ms AND compute_ms > 0 AND upload_ms > 0) FROM client_rounds"
    )
    assert times == [(True,)]


def test_a_script_that_fails_in_its_own_process_is_named(jobs: dict[str, Job]) -> None:
    ((client, number, error, trace),) = jobs["own_process"].rows(
        "SELECT client, round, error, traceback FROM client_rounds WHERE status <> 'ok'"
    )
    assert (client, number, error) == ("site-2", 1, ERROR)
    assert "in load_batch" in trace


@pytest.mark.parametrize("query", re.findall(r"^```sql nvflare\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
def test_queries_of_the_docs_find_something(faulty: Job, query: str) -> None:
    assert faulty.rows(query)
