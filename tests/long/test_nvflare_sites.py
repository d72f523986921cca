"""An NVFlare job whose clients record at their own sites: one sends to a collector, one only answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collecting import CollectorProcess, everything
from flower_runs import DEADLINE_S, Rows
from processes import PROGRAMS, command, drainers_of, environment, wait_until

from stethos.collect.site import make_site
from stethos.store.run import open_run

ROUNDS, STEPS = 3, 3


@pytest.fixture(scope="module")
def live() -> list[Any]:
    """What the dashboard showed while the job waited in its second round."""
    return []


def shown(collector: CollectorProcess) -> list[Any]:
    """How many steps of the client that sends the dashboard knows; nothing where it knows none."""
    answer = collector.dashboard("job", "SELECT count(*) AS steps FROM steps WHERE process LIKE 'sending@%'")
    return [count for (count,) in answer.get("values", []) if count]


def turns_of_sender(path: Path) -> int:
    """How many of its turns have been written into the run, which is after they were acknowledged."""
    with open_run(path) as run:
        return int(run.rows("SELECT count(*) FROM client_reports WHERE process LIKE 'sending@%'").values[0][0])


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, live: list[Any]) -> Iterator[Rows]:
    """The collector is killed after the first rows and started again. In the last round one client fails."""
    directory = tmp_path_factory.mktemp("sites")
    collector, observed = CollectorProcess(directory), directory / "runs" / "job"
    collector.runs = observed.parent  # where the server records
    collector.start()
    riding = make_site(directory / "riding", "riding")
    sending = collector.enrol(directory / "sending", "sending", everything())
    own = environment(
        NVFLARE_SITES=json.dumps({"site-1": str(riding.path), "site-2": str(sending.path)}), HOME=str(directory),
        PATH=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])), TMPDIR=str(directory),
        NVFLARE_WAIT_FOR=str(directory / "go on"),
    )  # fmt: skip
    own["PYTHONPATH"] = os.pathsep.join((own["PYTHONPATH"], str(PROGRAMS / "nvflare_sites")))
    words = (sys.executable, PROGRAMS / "nvflare_job.py", directory, "--observe", "--clients", "2")
    more = ("--rounds", str(ROUNDS), "--faults", f"site-2:wait:1,site-2:raise:{ROUNDS - 1}")
    with (directory / "said.txt").open("w+") as said:
        job = subprocess.Popen([*map(str, words), *more], cwd=directory, env=own, stdout=said,
                               stderr=said, stdin=subprocess.DEVNULL)  # fmt: skip
        try:
            wait_until(lambda: list(observed.glob("sending@*")) or job.poll() is not None, "rows by POST", DEADLINE_S)
            live.extend(wait_until(lambda: shown(collector), "its steps in the collector's dashboard", DEADLINE_S))
            collector.kill()
            (directory / "go on").touch()
            collector.start()
            assert job.wait(DEADLINE_S) == 0, (directory / "said.txt").read_text()[-5000:]
            wait_until(lambda: not drainers_of(directory), "the end of all drainers", DEADLINE_S)
            assert "everything is sent" in command("collect", "--send", sending.path).stdout
            wait_until(lambda: turns_of_sender(observed) >= ROUNDS, "what was acknowledged in its run", DEADLINE_S)
            yield Rows(open_run(observed))
        finally:
            job.kill()
            collector.stop()


def test_the_turns_of_both_clients_are_in_the_servers_run_under_its_names(rows: Rows) -> None:
    found = rows("SELECT client, count(*) FROM client_reports WHERE side = 'client' GROUP BY client ORDER BY client")
    assert [client for client, _ in found] == ["site-1", "site-2"]
    assert found[0][1] >= ROUNDS - 1 and found[1][1] == ROUNDS  # what rides along goes with the next answer


def test_a_site_that_lets_everything_through_has_its_steps_there(rows: Rows) -> None:
    found = rows("SELECT process LIKE 'sending@%', count(*), count(loss) FROM steps GROUP BY 1")
    steps = (ROUNDS - 1) * STEPS  # in the last round it fails before the first
    assert found == [(True, steps, steps)]


def test_its_steps_were_in_the_dashboard_while_the_job_went_on(rows: Rows, live: list[Any]) -> None:
    (steps,) = live
    assert 0 < steps <= STEPS


def test_a_failure_and_the_layers_of_a_site_are_there(rows: Rows) -> None:
    found = rows("SELECT round, error, traceback LIKE '%in load_batch%' FROM client_reports "
                 "WHERE process LIKE 'sending@%' AND status = 'failed'")  # fmt: skip
    assert found == [(ROUNDS - 1, "LocalDataError: shard 7 is unreadable", True)]
    assert rows("SELECT status FROM client_rounds WHERE client = 'site-2' ORDER BY round")[-1] == ("failed",)
    assert rows("SELECT DISTINCT process LIKE 'sending@%' FROM layers WHERE process LIKE '%@%'") == [(True,)]


def test_a_site_with_the_default_policy_tells_no_loss(rows: Rows) -> None:
    found = rows("SELECT count(entry_loss), count(exit_loss), count(confusion), count(compute_ms) > 0 "
                 "FROM client_reports WHERE client = 'site-1'")  # fmt: skip
    assert found == [(0, 0, 0, True)]


def test_the_books_of_every_process_elsewhere_balance(rows: Rows) -> None:
    found = rows("SELECT rows_produced - rows_stored - rows_dropped - rows_lost - rows_withheld - rows_pending, "
                 "rows_lost, rows_dropped FROM processes WHERE process LIKE '%@%'")  # fmt: skip
    assert len(found) >= 2 and set(found) == {(0, 0, 0)}
