"""A legacy Flower strategy with NumPy clients, on the Ray engine."""

from __future__ import annotations

import pytest
from flower_runs import Rows, recorded, run_on_ray


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    directory = tmp_path_factory.mktemp("legacy")
    run_on_ray(directory, "flower_legacy.py", str(directory))
    return Rows(recorded(directory / "legacy"))


def test_the_client_that_sent_nan_is_named_with_the_models_layer(rows: Rows) -> None:
    assert rows("SELECT client, layer, nan FROM updates WHERE nan > 0 AND round = 1 AND layer IS NOT NULL") == [
        (rows.client(1), "2.weight", 1),
        (None, "2.weight", 1),
    ]


def test_the_client_that_raised_is_named_with_its_traceback(rows: Rows) -> None:
    found = rows.one("SELECT round, client, error, traceback FROM client_rounds WHERE status <> 'ok'")
    assert found[:3] == (2, rows.client(2), "ValueError: a fault of the client") and "in fit" in found[3]


def test_turns_have_what_the_clients_returned(rows: Rows) -> None:
    found = rows("""SELECT label, samples, loss, metrics::json->>'depth', download_ms > 0, upload_ms > 0, raw_bytes
        FROM client_rounds WHERE round = 1 ORDER BY label""")
    assert found == [(str(label), 10 + label, 0.5, "3", True, True, 92) for label in (0, 1, 2)]


def test_rounds_end_with_their_evaluation(rows: Rows) -> None:
    found = rows("SELECT round, selected, reported, failed, loss, accuracy, global_nan, drift > 0 FROM rounds")
    assert sorted(found) == [(1, 3, 3, 0, 0.25, 0.75, 1, True), (2, 3, 2, 1, 0.25, 0.75, 1, True)]


def test_a_round_is_one_trace_across_processes(rows: Rows) -> None:
    found = rows("""
        SELECT top.round, count(*), count(DISTINCT below.process) > 1 FROM spans top
        JOIN spans below ON below.parent = top.span AND below.trace = top.trace
        WHERE top.name = 'round' AND below.name IN ('client', 'client_evaluate', 'aggregate')
        GROUP BY top.round ORDER BY top.round""")
    assert found == [(1, 7, True), (2, 7, True)]
    assert rows("SELECT what, reason FROM gaps") == []
