"""A Flower deployment on loopback: a SuperLink, SuperNodes, and a fresh process for every message."""

from __future__ import annotations

from pathlib import Path

import pytest
from flower_runs import DEADLINE_S, Rows, deployment, recorded, said_so_far
from perfetto_reader import trace_processor
from processes import wait_until

from stethos.export import perfetto

WAITS = "round 1 waits: 1 of 2 clients connected"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deployment")


@pytest.fixture(scope="module")
def rows(directory: Path) -> Rows:
    settings = {"rounds": 1, "fault_round": 1, "clients": 2, "evaluates": False, "parts": ["observed"]}
    with deployment(directory, **settings) as deployed:
        deployed.add_node(1)
        deployed.submit()
        try:
            wait_until(lambda: said_so_far(directory / "observed", WAITS), "a word on what is waited for", DEADLINE_S)
            deployed.add_node(2)
            wait_until((directory / "observed.npz").exists, "the final arrays", DEADLINE_S)
        except AssertionError as error:
            raise AssertionError(deployed.what_was_said()) from error
        return Rows(recorded(directory / "observed"))


def test_waiting_for_clients_is_said_once(rows: Rows) -> None:
    assert rows(f"SELECT level, round FROM logs WHERE message = '{WAITS}'") == [("WARNING", 1)]


def test_the_client_that_sent_nan_is_named_with_round_and_layer(rows: Rows) -> None:
    found = rows(
        "SELECT round, client, layer, nan FROM updates WHERE nan > 0 AND layer IS NOT NULL AND client IS NOT NULL"
    )
    assert found == [(1, rows.client(1), "3.bias", 2)]
    (message,) = rows.one("SELECT message FROM logs WHERE message LIKE '%NaN%'")
    assert message == f"round 1: client {rows.client(1)} sent NaN or infinite values: 2 of layer 3.bias"


def test_the_client_that_raised_is_named_with_its_traceback(rows: Rows) -> None:
    found = rows.one("SELECT round, client, status, error, traceback FROM client_rounds WHERE status <> 'ok'")
    assert found[:4] == (1, rows.client(2), "failed", "ValueError: a fault of the client") and "in refuse" in found[4]
    (seen,) = rows.one("SELECT error FROM client_reports WHERE side = 'server' AND status = 'failed'")
    assert seen == "ValueError: a fault of the client (Flower error 2)"


def test_the_round_is_recorded(rows: Rows) -> None:
    assert rows("SELECT round, selected, reported, failed, loss, global_nan FROM rounds") == [(1, 2, 1, 1, 0.5, 2)]
    (turns,) = rows.one("""SELECT count(*) FROM client_rounds WHERE status = 'ok' AND samples = 17 AND steps = 3
        AND download_ms > 0 AND compute_ms > 0 AND upload_ms > 0 AND sent_bytes > 432 AND received_bytes > 432""")
    assert turns == 1


def test_rows_of_processes_that_lived_for_one_message_are_there(rows: Rows) -> None:
    found = rows("""SELECT client, count(DISTINCT process), count(*) FROM steps GROUP BY client ORDER BY client""")
    assert found == [(client, 1, 3) for client in sorted((rows.client(1), rows.client(2)))]
    assert rows.one("SELECT count(*) FROM processes") == (3,)


def test_the_round_is_one_trace_across_processes(rows: Rows) -> None:
    found = rows.one("""
        SELECT count(DISTINCT trace), count(DISTINCT process), count(*) FILTER (name = 'local training'),
            count(*) FILTER (name = 'client' AND parent = (SELECT span FROM spans WHERE name = 'round'))
        FROM spans""")
    assert found == (1, 3, 2, 2)
    assert rows("SELECT what, reason FROM gaps") == []


def test_the_round_is_one_perfetto_trace_across_processes(rows: Rows, tmp_path: Path) -> None:
    written = perfetto.write(rows.run, tmp_path / "round.json.gz")
    with trace_processor(tmp_path / "round.json.gz") as ask:
        assert ask.complaints() == [] and ask("SELECT count(*) AS n FROM slice WHERE dur < 0") == [(0,)]
        arrows = ask("""
            SELECT whole.name AS origin, thread.name AS track, turn.ts >= whole.ts AS is_after,
            turn.ts + turn.dur <= whole.ts + whole.dur AS is_before
            FROM flow JOIN slice AS whole ON flow.slice_out = whole.id JOIN slice AS turn ON flow.slice_in = turn.id
            JOIN thread_track ON turn.track_id = thread_track.id JOIN thread USING (utid)
            WHERE whole.category = 'round' ORDER BY track""")
        clients = sorted((rows.client(1), rows.client(2)))
        assert arrows == [("round 1", f"client {client}", 1, 1) for client in clients]
        inside = ask("""
            SELECT process.name AS home, count(*) AS n, sum(step.ts >= training.ts AND step.ts <= training.ts
            + training.dur) AS inside FROM slice AS step JOIN thread_track ON step.track_id = thread_track.id
            JOIN thread USING (utid) JOIN process USING (upid) JOIN thread AS other USING (upid)
            JOIN thread_track AS its ON other.utid = its.utid JOIN slice AS training ON training.track_id = its.id
            WHERE step.category = 'step' AND training.name = 'local training' GROUP BY 1""")
        assert [row[1:] for row in inside] == [(3, 3), (3, 3)] and written.notes == ()
