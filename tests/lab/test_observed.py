"""What a recorded federation leaves in the tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import stethos
from stethos import lab
from stethos.lab import Fault
from stethos.store.run import Run

FAULTS = [
    Fault("scaling", "c1", start=2),
    Fault("crash", "c2", 2, 2),
    Fault("dropout", "c3", 3),
    Fault("timeout", "c4", 1, 1),
    Fault("stale", "c5", strength=2),
    Fault("nan", "c0", 4, layer="out.bias"),
    Fault("slow-link", "c1", 4),
]
OPTIONS: dict[str, Any] = {"clients": 6, "rounds": 4, "faults": FAULTS}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> lab.LabResult:
    directory = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        return lab.federate(**OPTIONS, dir=directory, run="recorded")


@pytest.fixture
def recorded(result: lab.LabResult) -> Iterator[Run]:
    assert result.path is not None
    with stethos.open_run(result.path) as run:
        yield run


def rows(run: Run, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.sql(query).to_pylist()
    return found


def test_observing_changes_no_bit(result: lab.LabResult) -> None:
    silent = lab.federate(**OPTIONS, observe=False)
    assert repr(silent.history) == repr(result.history) and silent.path is None  # repr: NaN equals itself
    for name, tensor in silent.state.items():
        assert torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(result.state[name])), name


def test_every_turn_has_its_row(result: lab.LabResult, recorded: Run) -> None:
    found = {(row["round"], row["client"]): row for row in rows(recorded, "SELECT * FROM client_rounds")}
    assert len(found) == 24
    for rnd in result.history:
        for one in rnd.clients:
            row = found[rnd.round, one.client]
            assert row["status"] == one.status
            if one.status == "ok":
                for column in (
                    "samples", "loss", "accuracy", "entry_loss", "exit_loss", "download_ms", "compute_ms", "upload_ms",
                    "wait_ms", "peak_bytes", "base_round",
                ):  # fmt: skip
                    assert row[column] == pytest.approx(getattr(one, column)), column
                assert sum(map(sum, json.loads(row["confusion"]))) == one.samples
                assert row["sent_bytes"] == row["received_bytes"] == row["raw_bytes"] == 4 * (64 * 64 + 64 + 640 + 10)


def test_failures_say_why(recorded: Run) -> None:
    query = "SELECT * FROM client_rounds WHERE status != 'ok' ORDER BY round, client"
    late, crashed, *dropped = rows(recorded, query)
    assert {row["peak_bytes"] for row in (late, crashed, *dropped)} == {None}  # it is not the lab's own memory
    assert (late["client"], late["status"]) == ("c4", "timeout") and "no reply within" in late["error"]
    assert (crashed["client"], crashed["status"]) == ("c2", "failed")
    assert crashed["error"].startswith("ClientCrash: client c2 crashed in round 2")
    assert "Traceback" in crashed["traceback"]
    assert [(row["client"], row["error"]) for row in dropped] == [("c3", "no reply")] * 2


def test_rounds_have_virtual_times_and_the_evaluation(result: lab.LabResult, recorded: Run) -> None:
    found = rows(recorded, "SELECT * FROM rounds ORDER BY round")
    assert [row["duration_ms"] for row in found] == pytest.approx([one.duration_ms for one in result.history])
    assert [row["wait_ms"] for row in found] == pytest.approx([one.wait_ms for one in result.history])
    assert [row["accuracy"] for row in found] == pytest.approx(result.accuracies)
    assert [(row["selected"], row["reported"]) for row in found] == [(6, 5), (6, 5), (6, 5), (6, 5)]


def test_updates_show_what_was_sent(recorded: Run) -> None:
    scaled = rows(
        recorded, "SELECT client, norm_ratio FROM updates WHERE round = 2 AND layer IS NULL AND client = 'c1'"
    )
    assert scaled[0]["norm_ratio"] > 5
    spoilt = rows(recorded, "SELECT round, client, layer, nan FROM updates WHERE nan > 0 AND client IS NOT NULL")
    assert {(row["round"], row["client"]) for row in spoilt} == {(4, "c0")}
    assert [row["nan"] for row in spoilt if row["layer"] == "out.bias"] == [10]


def test_steps_carry_client_and_round(result: lab.LabResult, recorded: Run) -> None:
    found = rows(recorded, "SELECT round, client, count(*) AS n, arg_min(loss, step) AS first FROM steps GROUP BY ALL")
    trained = {(rnd.round, one.client): one for rnd in result.history for one in rnd.clients if one.status == "ok"}
    assert {(row["round"], row["client"]) for row in found} == set(trained)
    assert all(row["n"] == -(-(trained[row["round"], row["client"]].samples or 0) // 32) for row in found)


def test_steps_of_other_processes_carry_client_and_round(tmp_path: Path) -> None:
    options: dict[str, Any] = {"clients": 3, "rounds": 2}
    result = lab.federate(**options, processes=2, dir=tmp_path)
    assert result.history == lab.federate(**options, observe=False).history
    assert result.path is not None
    with stethos.open_run(result.path) as run:
        found = rows(run, "SELECT round, client, count(*) AS n FROM steps GROUP BY ALL ORDER BY ALL")
        assert [(row["round"], row["client"], row["n"]) for row in found] == [
            (number, f"c{client}", 15) for number in (1, 2) for client in range(3)
        ]
        assert len(rows(run, "SELECT * FROM client_rounds")) == 6


def test_the_stacked_engine_is_recorded_without_steps(tmp_path: Path) -> None:
    result = lab.federate(clients=3, rounds=2, engine="stacked", dir=tmp_path)
    assert result.path is not None
    with stethos.open_run(result.path) as run:
        assert rows(run, "SELECT count(*) AS n FROM steps") == [{"n": 0}]
        found = rows(run, "SELECT entry_loss, steps FROM client_rounds WHERE round = 2 ORDER BY client")
    assert [row["entry_loss"] for row in found] == pytest.approx([one.entry_loss for one in result.history[1].clients])
    assert [row["steps"] for row in found] == [15] * 3


def test_an_error_of_the_callers_ends_the_recording(tmp_path: Path) -> None:
    def fail(exchange: lab.Exchange) -> None:
        raise ArithmeticError("the caller's own")

    with pytest.raises(ArithmeticError):
        lab.federate(clients=3, rounds=2, dir=tmp_path, run="failed", each_round=fail)
    with stethos.open_run(tmp_path / "failed") as run:
        assert len(rows(run, "SELECT * FROM client_rounds")) == 3
