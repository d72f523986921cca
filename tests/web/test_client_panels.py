"""The map and the table of clients over a run made by hand: many clients, one of which sends NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import T0_NS, RunBuilder
from federated_rows import put_row

from stethos.schema import CLIENT_REPORTS, UPDATES
from stethos.store.run import Run, open_run
from stethos.web.panel import evaluate
from stethos.web.panels import PANELS

CLIENTS = 230
BROKEN = "c007"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    path: Path = tmp_path_factory.mktemp("many") / "many"
    with RunBuilder(path) as made:
        server = made.process(is_alive=False)
        for place in range(CLIENTS):
            client = f"c{place:03}"
            facts: dict[str, Any] = {"norm": 1.0 + place / 1000, "cos_centre": 0.5, "nan": 0, "inf": 0}
            if client == BROKEN:
                facts = {"nan": 3, "inf": 1}  # it has no norm and no direction
            put_row(server, UPDATES, T0_NS, client=client, round=1, federation="wards", **facts)
            put_row(server, CLIENT_REPORTS, T0_NS, client=client, round=1, federation="wards", duration_ms=1.0)
        server.drain()
        server.finish()
    with open_run(path) as opened:
        yield opened


def shown(run: Run, name: str, **given: str) -> list[dict[str, Any]]:
    return evaluate(run, PANELS[name], **given).records()


@pytest.mark.parametrize("measure", ["norm", "cosine"])
def test_who_sends_nan_is_among_those_shown_and_is_nan(run: Run, measure: str) -> None:
    rows = shown(run, "client-map", measure=measure)
    assert len(rows) == 100 and {row["of_rows"] for row in rows} == {CLIENTS}
    (value,) = [row["value"] for row in rows if row["client"] == BROKEN]
    assert math.isnan(float(value))
    assert rows[0]["client"] == BROKEN and [row["place"] for row in rows] == list(range(1, 101))  # outliers first
    (beside,) = shown(run, f"client-{measure}", client=BROKEN)
    assert math.isnan(float(beside["client"])) and math.isfinite(float(beside["others"]))


def test_who_sends_nan_stands_first_in_the_table(run: Run) -> None:
    first, second, *_ = shown(run, "client-table")
    assert (first["client"], first["non_finite"], second["non_finite"]) == (BROKEN, 4, 0)


def test_bytes_that_nobody_counted_are_no_panel(run: Run) -> None:
    assert shown(run, "round-bytes") == []


def test_clients_are_beside_those_of_their_own_federation(tmp_path: Path) -> None:
    """As those of edge servers, whose rounds have the same numbers."""
    with RunBuilder(tmp_path / "edges") as made:
        server = made.process(is_alive=False)
        for federation, clients, norm in (("east", ("a", "b", "c"), 1.0), ("west", ("x", "y"), 100.0)):
            for place, client in enumerate(clients):
                common: dict[str, Any] = {"client": client, "round": 1, "federation": federation}
                put_row(server, UPDATES, T0_NS, norm=norm + place, nan=0, inf=0, **common)
                put_row(server, CLIENT_REPORTS, T0_NS, duration_ms=norm + place, side="server", turn=0, **common)
        server.drain()
        server.finish()
    with open_run(tmp_path / "edges") as run:
        (row,) = shown(run, "client-time", client="a")
        assert (row["client"], row["others"]) == (1.0, 2.5)
        assert [(row["client"], row["rounds"]) for row in shown(run, "critical-clients")] == [("c", 1), ("y", 1)]


def test_a_turn_is_one_row_whoever_told_of_it(tmp_path: Path) -> None:
    """Round 1 is told by the server alone, round 2 by the client, too, and round 3 by two servers."""
    with RunBuilder(tmp_path / "told") as made:
        server, second, client = (made.process(is_alive=False) for _ in range(3))
        for number in (1, 2, 3):
            common: dict[str, Any] = {"client": "a", "round": number, "federation": "f", "turn": 0}
            put_row(server, CLIENT_REPORTS, T0_NS, side="server", status="ok", loss=float(number), **common)
            if number == 2:
                put_row(client, CLIENT_REPORTS, T0_NS + 1, side="client", loss=9.0, samples=50, **common)
            if number == 3:
                put_row(second, CLIENT_REPORTS, T0_NS + 2, side="server", status="ok", loss=4.0, **common)
        for process in (server, second, client):
            process.drain()
            process.finish()
    with open_run(tmp_path / "told") as run:
        told = run.rows("SELECT round, loss, samples FROM client_rounds ORDER BY round").values
    assert told == [(1, 1.0, None), (2, 2.0, 50), (3, 4.0, None)]


def test_confusion_is_shown_as_shares_of_each_label(tmp_path: Path) -> None:
    matrices = {"a": "[[6, 2], [0, 4]]", "b": "[[2, 6], [1, 3]]", "c": "[[1, 2], [3]]", "d": "no matrix"}
    noisy = {"noise": 0.5, "counts": [[3, 1], [0, 4]]}
    with RunBuilder(tmp_path / "told") as made:
        server = made.process(is_alive=False)
        for client, text in matrices.items():
            common: dict[str, Any] = {"client": client, "round": 1, "federation": "f", "turn": 0, "side": "server"}
            put_row(server, CLIENT_REPORTS, T0_NS, confusion=text, **common)
        common = {"client": "e", "round": 1, "federation": "g", "turn": 0, "side": "server"}
        put_row(server, CLIENT_REPORTS, T0_NS - 1, confusion=json.dumps(noisy), **common)
        server.drain()
        server.finish()
    with open_run(tmp_path / "told") as run:
        one = [(row["label"], row["answer"], row["value"]) for row in shown(run, "confusion", client="a")]
        assert one == [("0", 0, 0.75), ("0", 1, 0.25), ("1", 0, 0.0), ("1", 1, 1.0)]
        assert [row["samples"] for row in shown(run, "confusion")] == [9, 10, 4, 7]  # all of them together
        assert shown(run, "confusion", client="d") == []
        assert [row["samples"] for row in shown(run, "confusion", client="e")] == [3, 1, 0, 4]
