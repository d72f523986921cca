"""A true case, a near miss and an empty case."""

from __future__ import annotations

from typing import Any

from stethos_late_clients import LateClients

from stethos.testing import client_rounds, diagnosed, window_of


def late(client: str, number: int, row: dict[str, Any]) -> dict[str, float]:
    return {"upload_ms": 2 * row["compute_ms"]} if client == "c3" else {}


def test_a_client_with_a_slow_link_is_found() -> None:
    (finding,) = diagnosed(LateClients(), window_of(client_rounds=client_rounds(late))).findings
    assert finding.subject.clients == ("c3",) and "2.0 times" in finding.title


def test_two_rounds_are_too_few() -> None:
    rows = client_rounds(late, rounds=(1, 2))
    assert not diagnosed(LateClients(), window_of(client_rounds=rows)).findings


def test_without_rows_it_says_that_it_could_not_check() -> None:
    (missed,) = diagnosed(LateClients(), window_of()).not_checked
    assert missed.reason == "no rows in `client_rounds`"
