"""A run's state as Prometheus' own parser reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from builders import RunBuilder
from federated_rows import build_federation
from prometheus_client.parser import text_string_to_metric_families

from stethos.export import prometheus
from stethos.store.run import Run, open_run

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """The samples by name and labels; every one is there once and belongs to a family with help and type."""
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert family.type in ("counter", "gauge") and family.documentation
        for sample in family.samples:
            labels = frozenset((name, value) for name, value in sample.labels.items() if name != "run")
            assert labels not in found.setdefault(sample.name, {}) and sample.labels["run"]
            found[sample.name][labels] = sample.value
    return found


def labels(**given: str) -> frozenset[tuple[str, str]]:
    return frozenset(given.items())


def test_the_parser_reads_what_was_recorded(federation: Run) -> None:
    found = parsed(prometheus.text(federation))
    assert found["stethos_rounds_total"] == {labels(federation="wards"): 3}
    assert found["stethos_round_loss"][labels(federation="wards")] == pytest.approx(1 / 3)
    assert sum(found["stethos_steps_total"].values()) == sum(row["steps"] for row in federation.processes())
    turns = found["stethos_client_turns_total"]
    assert turns[labels(federation="wards", client="c1", status="ok")] == 3 and sum(turns.values()) == 9
    assert found["stethos_run_up"] == {frozenset(): 0}
    assert found["stethos_round_clients"][labels(federation="wards", fate="failed")] == 1


def test_names_are_escaped(federation: Run) -> None:
    clients = {dict(found)["client"] for found in parsed(prometheus.text(federation))["stethos_client_turns_total"]}
    assert clients == {"c1", "c2", '\ufffd[31m<script>"c\\3"\ufffd[0m\ufffd'}


def test_of_many_clients_the_rest_is_one_other(tmp_path: Path) -> None:
    build_federation(tmp_path / "run", rounds=2, clients=(*(f"c{number}" for number in range(7)), "other"))
    with open_run(tmp_path / "run") as run:
        found = parsed(prometheus.text(run, labelled=5))
    turns = found["stethos_client_turns_total"]
    assert sum(turns.values()) == 16
    named = {dict(one)["client"] for one in turns}
    assert "other" in named and len(named) <= 6
    assert {dict(one).get("process") for one in found["stethos_rows_total"]} >= {"other"}


def test_numbers_that_are_none_are_written_as_prometheus_has_them(run: RunBuilder) -> None:
    process = run.process()
    process.steps(2, losses=[1.0, float("nan")])
    process.metric("score", float("inf"))
    process.drain()
    with open_run(run.path) as opened:
        text = prometheus.text(opened)
    assert "} NaN\n" in text and "} +Inf\n" in text
    assert parsed(text)["stethos_metric"] == {labels(name="score"): float("inf")}


def test_a_run_without_rows_has_a_state(run: RunBuilder) -> None:
    with open_run(run.path) as opened:
        assert set(parsed(prometheus.text(opened))) >= {"stethos_run_info", "stethos_run_up"}
