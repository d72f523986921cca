"""Flower's Message API on the Ray engine: three clients, of which one sends NaN and one raises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flower_runs import Rows, flower_environment, recorded, run_on_ray
from processes import PROGRAMS, command

PARTS = ["plain", "observed", "failing", "unwritable", "own_loop"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def said(directory: Path) -> str:
    return run_on_ray(directory, "flower_app.py", rounds=3, parts=PARTS)


@pytest.fixture(scope="module")
def rows(directory: Path, said: str) -> Rows:
    return Rows(recorded(directory / "observed"))


def test_training_is_the_same_bit_for_bit(directory: Path, said: str) -> None:
    plain, observed = np.load(directory / "plain.npz"), np.load(directory / "observed.npz")
    assert list(plain) == list(observed) and len(plain) == 9 * 4
    assert all(np.isfinite(plain[name]).all() for name in plain if name[0] == "1")  # the fault begins in round 2
    assert [name for name in plain if plain[name].tobytes() != observed[name].tobytes()] == []


def test_the_client_that_sent_nan_is_named_with_round_and_layer(rows: Rows) -> None:
    first = rows("SELECT round, client, layer, nan FROM updates WHERE nan > 0 AND round <= 2 AND layer IS NOT NULL")
    assert sorted(first, key=str) == sorted([(2, rows.client(1), "3.bias", 2), (2, None, "3.bias", 2)], key=str)


def test_nan_is_warned_of_once_per_client_and_round(rows: Rows) -> None:
    warned = "SELECT round, client, message FROM logs WHERE logger = 'stethos.flower' AND message LIKE '%NaN%'"
    assert rows(f"{warned} AND round = 2") == [
        (2, rows.client(1), f"round 2: client {rows.client(1)} sent NaN or infinite values: 2 of layer 3.bias")
    ]
    later = [text for _, _, text in rows(f"{warned} AND round = 3")]
    ending = "and 5 more layers; the model it was given had some, too"
    assert [text.endswith(ending) for text in later] == [True, True, True], later


def test_the_client_that_raised_is_named_with_its_traceback(rows: Rows) -> None:
    failed = "SELECT round, client, label, error, traceback FROM client_rounds WHERE status = 'failed'"
    number, client, label, error, trace = rows.one(failed)
    assert (number, client, label, error) == (2, rows.client(2), "2", "ValueError: a fault of the client")
    assert trace.startswith("Traceback") and "in refuse" in trace and trace.endswith(f"{error}\n")


def test_the_server_knows_of_the_failure_without_the_client(rows: Rows) -> None:
    seen = rows.one("SELECT error, traceback FROM client_reports WHERE status = 'failed' AND side = 'server'")
    assert seen[0] == "ValueError: a fault of the client (Flower error 2)" and "in refuse" in seen[1]


def test_every_turn_has_its_status_samples_and_loss(rows: Rows) -> None:
    turns = rows("SELECT round, label, status, samples, loss IS NULL, steps FROM client_rounds ORDER BY round, label")
    assert turns == [
        (number, str(label), "failed" if failed else "ok", None if failed else 16 + label, failed, 3)
        for number in (1, 2, 3)
        for label in (0, 1, 2)
        for failed in [(number, label) == (2, 2)]
    ]


def test_every_turn_has_times_and_bytes(rows: Rows) -> None:
    (turns,) = rows.one("""
        SELECT count(*) FROM client_rounds WHERE status = 'ok' AND download_ms >= 0 AND upload_ms >= 0 AND wait_ms >= 0
        AND compute_ms BETWEEN 0.1 AND duration_ms AND raw_bytes = 432 AND sent_bytes > 432 AND received_bytes > 432
        AND peak_bytes > 0 AND entry_loss IS NOT NULL AND metrics LIKE '%transfer_ms%'""")
    assert turns == 8


def test_every_round_is_recorded(rows: Rows) -> None:
    found = rows("""
        SELECT round, selected, reported, failed, round(loss, 4), evaluation, global_nan, aggregate_ms > 0,
            select_ms > 0, evaluate_ms > 0 FROM rounds ORDER BY round""")
    averages = '{"clients_loss": 0.5, "clients_accuracy": 0.125}'
    assert found == [
        (1, 3, 3, 0, 0.5, averages, 0, True, True, True),
        (2, 3, 2, 1, 0.3333, averages, 2, True, True, True),
        (3, 3, 3, 0, 0.25, averages, 90, True, True, True),
    ]


def test_a_round_is_one_trace_across_processes(rows: Rows) -> None:
    found = rows("""
        WITH RECURSIVE tree AS (
            SELECT round, span, trace, process, name, CAST(name AS varchar) AS path FROM spans
            WHERE name = 'round' AND parent IS NULL
            UNION ALL
            SELECT tree.round, spans.span, spans.trace, spans.process, spans.name, tree.path || '/' || spans.name
            FROM spans JOIN tree ON spans.parent = tree.span AND spans.trace = tree.trace)
        SELECT round, count(DISTINCT trace), count(DISTINCT process) > 1, count(*) FILTER (path = 'round/aggregate'),
            count(*) FILTER (path = 'round/client/compute/local training'),
            count(*) FILTER (path = 'round/client_evaluate'), count(*) FROM tree GROUP BY round ORDER BY round""")
    (spans,) = rows.one("SELECT count(*) FROM spans")
    assert [row[:-1] for row in found] == [(number, 1, True, 1, 3, 3) for number in (1, 2, 3)]
    assert sum(row[-1] for row in found) == spans


def test_a_failed_evaluation_is_logged_where_it_happened_and_at_the_server(rows: Rows) -> None:
    found = rows("""SELECT level, client, exception LIKE '%in evaluate%ArithmeticError%' FROM logs
        WHERE logger = 'stethos.flower' AND message LIKE '%evaluate%' AND round = 1 ORDER BY level""")
    assert found == [("ERROR", rows.client(2), True), ("WARNING", rows.client(2), None)]


def test_numbers_of_each_clients_evaluation_are_metrics(rows: Rows) -> None:
    found = rows.labels("""SELECT label, value FROM metrics JOIN named USING (client)
        WHERE name = 'eval_acc' AND round = 2 ORDER BY label""")
    assert found == [("0", 0.0), ("1", 0.25)]


def test_nothing_of_ours_failed(rows: Rows) -> None:
    assert rows("SELECT what, reason FROM gaps") == []


def test_a_round_whose_aggregation_raises_is_recorded(directory: Path, said: str) -> None:
    rows = Rows(recorded(directory / "failing"))
    assert rows("SELECT round, selected, reported, failed FROM rounds") == [(1, 3, 3, 0)]
    raised = rows("SELECT name, exception FROM spans WHERE NOT ok ORDER BY name")
    assert raised == [(name, "RuntimeError: a fault of the strategy") for name in ("aggregate", "round")]


def test_workers_follow_into_the_next_federation(directory: Path, said: str) -> None:
    rows = Rows(recorded(directory / "failing"))
    assert rows.one("SELECT count(*), count(DISTINCT process) > 0 FROM client_reports WHERE side = 'client'") == (
        3,
        True,
    )


def test_where_nothing_can_be_recorded_training_goes_on(said: str) -> None:
    assert "stethos: not recording" in said and "all parts are done" in said


def test_a_client_too_slow_for_an_own_loop_has_timed_out(directory: Path, said: str) -> None:
    rows = Rows(recorded(directory / "own_loop"))
    assert rows("SELECT label, status FROM client_rounds ORDER BY label") == [
        ("0", "timeout"),
        ("1", "ok"),
        ("2", "ok"),
    ]
    (error,) = rows.one("SELECT error FROM client_rounds WHERE status = 'timeout'")
    assert error.startswith("no reply within ")
    assert rows("SELECT round, selected, reported, failed, drift > 0 FROM rounds") == [(7, 3, 2, 1, True)]


def test_a_client_app_is_called_again_with_the_recorded_message(directory: Path, rows: Rows) -> None:
    words = ["replay", "-t", directory / "observed", "--client-app", f"{PROGRAMS / 'flower_app.py'}:client_app"]
    own = flower_environment(directory)
    for number, label in ((1, 0), (3, 2)):
        again = command(*words, "--round", str(number), "--client", rows.client(label), env=own)
        assert again.returncode == 0 and "the recorded bits" in again.stdout, again.stdout + again.stderr
    refused = command(*words, "--round", "2", "--client", rows.client(2), env=own)
    assert refused.returncode == 7 and "does not exist: it failed" in refused.stderr
