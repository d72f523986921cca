"""A Flower deployment with TLS, whose clients record at their own sites: one sends to a collector, one only answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collecting import CollectorProcess, everything
from flower_runs import DEADLINE_S, Rows, deployment
from processes import command, drainers_of, wait_until

from stethos.collect.site import make_site
from stethos.errors import StethosError
from stethos.store.run import open_run


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sites")


def turns_of(path: Path) -> int:
    """How many rows of the clients' own have come into the server's run."""
    try:
        with open_run(path) as run:
            return int(run.rows("SELECT count(*) FROM client_reports WHERE side = 'client'").values[0][0])
    except StethosError:
        return 0


def shown(collector: CollectorProcess) -> list[Any]:
    """How many steps of the client that sends the dashboard knows; nothing where it knows none."""
    answer = collector.dashboard("observed", "SELECT count(*) AS steps FROM steps WHERE process LIKE 'sending@%'")
    return [count for (count,) in answer.get("values", []) if count]


@pytest.fixture(scope="module")
def live() -> list[Any]:
    """What the dashboard showed while the federation went on, and whether it had ended then."""
    return []


@pytest.fixture(scope="module")
def rows(directory: Path, live: list[Any]) -> Iterator[Rows]:
    """Three rounds; the collector is killed after the first rows and started again. In the last one client fails."""
    collector, observed = CollectorProcess(directory), directory / "observed"
    collector.runs = directory  # where the server records
    collector.start()
    riding = make_site(directory / "riding", "riding")
    sending = collector.enrol(directory / "sending", "sending", everything())
    settings = {"rounds": 3, "fault_round": 3, "clients": 2, "evaluates": False, "parts": ["observed"]}
    try:
        with deployment(directory, tls=True, **settings) as deployed:
            deployed.add_node(1, STETHOS_SITE=str(riding.path))
            deployed.add_node(2, STETHOS_SITE=str(sending.path))
            deployed.submit()
            try:
                wait_until(lambda: list(observed.glob("sending@*")), "the first rows by POST", DEADLINE_S)
                live.extend(wait_until(lambda: shown(collector), "its steps in the collector's dashboard", DEADLINE_S))
                live.append((directory / "observed.npz").exists())
                collector.kill()
                collector.start()
                wait_until((directory / "observed.npz").exists, "the final arrays", DEADLINE_S)
                wait_until(lambda: turns_of(observed) >= 2, "the turns of the clients", DEADLINE_S)
            except AssertionError as error:
                raise AssertionError(deployed.what_was_said()) from error
        wait_until(lambda: not drainers_of(directory), "the end of all drainers", DEADLINE_S)
        assert "everything is sent" in command("collect", "--send", sending.path).stdout
        yield Rows(open_run(observed))
    finally:
        collector.stop()


def test_the_turns_of_both_clients_are_in_the_servers_run_under_its_names(rows: Rows) -> None:
    clients = {row[0] for row in rows("SELECT DISTINCT client FROM client_reports WHERE side = 'server'")}
    assert len(clients) == 2
    assert {row[0] for row in rows("SELECT DISTINCT client FROM client_reports WHERE side = 'client'")} == clients
    found = rows("SELECT round, status, count(*) FROM client_rounds GROUP BY ALL ORDER BY ALL")
    assert found == [(1, "ok", 2), (2, "ok", 2), (3, "failed", 1), (3, "ok", 1)]


def test_its_steps_were_in_the_dashboard_while_the_federation_went_on(rows: Rows, live: list[Any]) -> None:
    steps, was_over = live
    assert 0 < steps <= 9 and not was_over


def test_a_failure_and_the_layers_of_a_site_are_there(rows: Rows) -> None:
    found = rows("SELECT error, traceback LIKE '%in refuse%' FROM client_reports WHERE process LIKE 'sending@%' "
                 "AND status = 'failed'")  # fmt: skip
    assert found == [("ValueError: a fault of the client", True)]
    found = rows("SELECT DISTINCT process LIKE 'sending@%' FROM layers WHERE process LIKE '%@%'")
    assert found == [(True,)]


def test_a_site_that_lets_everything_through_has_its_steps_there(rows: Rows) -> None:
    found = rows("SELECT process LIKE 'sending@%', count(*), count(loss) FROM steps GROUP BY 1")
    assert found == [(True, 9, 9)]


def test_a_site_with_the_default_policy_tells_no_loss_and_no_label(rows: Rows) -> None:
    (client,) = rows.one("SELECT DISTINCT client FROM client_reports WHERE side = 'client' AND process LIKE '%@%' "
                         "AND process NOT LIKE 'sending@%'")  # fmt: skip
    found = rows(f"""SELECT count(entry_loss), count(exit_loss), count(confusion), count(compute_ms) > 0,
        bool_and(steps = 4) FROM client_reports WHERE client = '{client}' AND steps IS NOT NULL""")
    assert found == [(0, 0, 0, True, True)]
    labels = rows(f"SELECT DISTINCT side, label FROM client_reports WHERE client = '{client}' AND steps IS NOT NULL")
    assert set(labels) == {("client", None), ("server", "riding")}  # its own name, and not that of its partition
    assert not rows(f"SELECT 1 FROM evidence WHERE client = '{client}'")


def test_the_books_of_every_process_elsewhere_balance(rows: Rows) -> None:
    found = rows("SELECT rows_produced - rows_stored - rows_dropped - rows_lost - rows_withheld - rows_pending, "
                 "rows_lost, rows_dropped FROM processes WHERE process LIKE '%@%'")  # fmt: skip
    assert len(found) >= 3 and set(found) == {(0, 0, 0)}
