"""Level L3: noise, and a ledger that is never behind what was given out."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stethos.collect.filter import filtered
from stethos.collect.noise import NoiseLedger, NoiseSource, multiplier_for, spent
from stethos.collect.policy import NoiseBudget, Policy, parse_policy
from stethos.diagnose.federated.cohort import cohort_of
from stethos.diagnose.federated.label_skew import row_sums
from stethos.errors import UsageError
from stethos.record.arrow import segment_schema
from stethos.schema import CLIENT_REPORTS

L3 = parse_policy('level = "L3"\n[noise]\nreleases = 20\nclasses = 3')


def reports(count: int, samples: int = 4096) -> pa.RecordBatch:
    schema = segment_schema(CLIENT_REPORTS)
    given = {
        "accuracy": [0.5] * count, "samples": [samples] * count, "loss": [1.5] * count, "entry_loss": [1.25] * count,
        "confusion": [json.dumps([[900, 0], [0, 1100]])] * count,
    }  # fmt: skip
    return pa.RecordBatch.from_pydict({one.name: given.get(one.name, [None] * count) for one in schema}, schema=schema)


def left(policy: Policy, rows: pa.RecordBatch, ledger: Path) -> dict[str, list[object]]:
    batch = filtered(policy, CLIENT_REPORTS, rows, NoiseSource(NoiseLedger(ledger), "r"))
    assert batch is not None
    return {name: batch.column(name).to_pylist() for name in ("accuracy", "confusion", "loss", "entry_loss", "samples")}


def test_numbers_leave_with_noise_and_those_without_a_bound_stay(tmp_path: Path) -> None:
    told = left(L3, reports(5), tmp_path / "ledger")
    accuracies = np.array(told["accuracy"], float)
    assert len(set(accuracies)) == 5 and not (accuracies == 0.5).any()
    assert np.abs(accuracies - 0.5).max() < 6 * multiplier_for(L3.noise) / 4096
    objects = [json.loads(str(text)) for text in told["confusion"]]
    matrices = [one["counts"] for one in objects]
    assert {one["noise"] for one in objects} == {round(multiplier_for(L3.noise) * 2**0.5, 1)}
    assert all(len(one) == 3 and all(len(row) == 3 for row in one) for one in matrices)
    assert len({json.dumps(one) for one in matrices}) == 5
    assert told["loss"] == told["entry_loss"] == [None] * 5
    assert told["samples"] == [4096] * 5


def test_no_verdict_rests_on_a_matrix_with_noise(tmp_path: Path) -> None:
    """Its counts are wrong by more than a client has samples, so that clean clients were accused of wrong labels."""
    told = left(L3, reports(4), tmp_path / "ledger")["confusion"]
    turns = {"round": [1] * 5, "client": ["a", "b", "c", "d", "e"], "confusion": [*told, "[[3, 1], [0, 2]]"]}
    matrices = cohort_of([turns]).confusion
    assert np.isnan(matrices[0, :4]).all() and matrices[0, 4].tolist() == [[3, 1], [0, 2]]
    assert [row_sums(text) for text in told] == [None] * 4
    assert "confusion" in L3.withholds()["client_reports"]


def test_nothing_leaves_with_noise_beyond_the_budget(tmp_path: Path) -> None:
    told = left(L3, reports(30), tmp_path / "ledger")
    given = sum(one is not None for name in ("accuracy", "confusion") for one in told[name])
    assert given == L3.noise.releases
    ledger = NoiseLedger(tmp_path / "ledger")
    assert spent(ledger.releases("r"), L3.noise.delta) <= L3.noise.epsilon
    again = left(L3, reports(1), tmp_path / "ledger")
    assert again["accuracy"] == [None] and again["confusion"] == [None]


def test_another_multiplier_is_paid_from_the_same_budget(tmp_path: Path) -> None:
    left(L3, reports(8), tmp_path / "ledger")
    greedy = parse_policy('level = "L3"\n[noise]\nreleases = 1')
    assert left(greedy, reports(1), tmp_path / "ledger")["accuracy"] == [None]


def test_few_samples_and_no_source_of_noise_tell_nothing(tmp_path: Path) -> None:
    told = left(L3, reports(2, samples=8), tmp_path / "ledger")
    assert told["accuracy"] == told["confusion"] == [None, None] and not (tmp_path / "ledger").exists()
    batch = filtered(L3, CLIENT_REPORTS, reports(1))
    assert batch is not None and batch.column("accuracy").null_count == 1


def test_without_a_number_of_classes_no_matrix_leaves(tmp_path: Path) -> None:
    assert left(parse_policy('level = "L3"'), reports(1), tmp_path / "ledger")["confusion"] == [None]


@pytest.mark.parametrize("line", [b"{}\n", b"nonsense\n", b'{"run": "r", "multiplier": 0, "count": 1}\n'])
def test_a_damaged_ledger_stops_everything(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "ledger").write_bytes(line)
    with pytest.raises(UsageError, match="damaged"):
        left(L3, reports(1), tmp_path / "ledger")


def test_a_line_that_a_kill_cut_is_left_out(tmp_path: Path) -> None:
    ledger = NoiseLedger(tmp_path / "ledger")
    ledger.pay("r", "x", 40.0, 3, L3.noise)
    with (tmp_path / "ledger").open("ab") as file:
        file.write(b'{"run": "r", "mul')
    assert ledger.releases("r") == [(40.0, 3)]
    ledger.pay("r", "x", 40.0, 1, L3.noise)
    assert ledger.releases("r") == [(40.0, 3), (40.0, 1)]


def kills(directory: Path, count: int) -> tuple[int, int]:
    """Kill a process that gives numbers out, again and again; how many were given out, and how many were paid."""
    budget = NoiseBudget(epsilon=10.0, releases=100_000)
    ledger = NoiseLedger(directory / "ledger")
    source = NoiseSource(ledger, "r")
    source.shares("warm", [0.5], [100], budget)  # imports, and the multiplier
    given, chance = 1, random.Random(7)
    for _ in range(count):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            while True:
                source.shares("x", [0.5], [100], budget)
                os.write(writer, b".")
        os.close(writer)
        given += len(os.read(reader, 1))
        time.sleep(chance.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reader, "rb") as told:
            given += len(told.read())
    return given, sum(number for _, number in ledger.releases("r"))


def test_a_killed_process_has_never_given_out_more_than_it_paid(tmp_path: Path) -> None:
    count = 200 if os.environ.get("LONG_TESTS") else 12
    given, paid = kills(tmp_path, count)
    assert count < given <= paid
