"""Runs that version 0.1.0 recorded open as they did then: a training, a federation with a fault, and a killed process
whose ring nobody had emptied."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from stethos.cli.main import main
from stethos.record.place import boot_id, host_key
from stethos.store.run import open_run

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "runs-0.1.0.tar.xz"
COUNTS = {
    "plain": {"steps": 60, "layers": 24, "metrics": 60, "logs": 6, "spans": 12, "modules": 13, "memory": 25},
    "federation": {"steps": 270, "layers": 12, "metrics": 12, "spans": 42, "updates": 180, "rounds": 6},
    "killed": {"steps": 40, "layers": 24, "metrics": 40, "logs": 1},
}
READING = (
    ["doctor"], ["tables"], ["query", "SELECT * FROM steps"], ["profile"], ["rounds"], ["clients"],
    ["compare-clients", "c3", "c1"], ["diagnose"], ["actions"], ["export", "--to", "perfetto", "-o", "trace.json.gz"],
    ["export", "--to", "parquet", "-o", "tables"], ["report", "-o", "report.html"], ["ls", "--dir", "."],
)  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    for file in tmp_path.glob("*/*/process.json"):  # as if it had been here, since the last boot
        file.write_text(json.dumps(json.loads(file.read_text()) | {"host_key": host_key(), "boot_id": boot_id()}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", COUNTS)
def test_has_the_rows_that_were_recorded(runs: Path, name: str) -> None:
    with open_run(runs / name) as run:
        found = {table: len(run.sql(f"SELECT 1 FROM {table}")) for table in COUNTS[name]}
    assert found == COUNTS[name]


def test_has_the_numbers_that_were_recorded(runs: Path) -> None:
    with open_run(runs / "plain") as run:
        (found,) = run.sql(
            "SELECT sum(step_ms) AS step_ms, sum(backward_ms) AS backward_ms, sum(samples)::bigint AS samples, "
            "sum(grad_norm) AS grad_norm, count(grad_norm) AS norms, arg_max(loss, step) AS loss FROM steps"
        ).to_pylist()
    assert found == pytest.approx(
        {"step_ms": 45.244824, "backward_ms": 9.075789, "samples": 960, "grad_norm": 2.4706125826625938, "norms": 5,
         "loss": 0.0808168351650238}, rel=1e-12,
    )  # fmt: skip


def test_reads_the_ring_of_a_process_that_was_killed(runs: Path) -> None:
    assert (runs / "killed" / "11651-60067" / "ring").is_file()
    with open_run(runs / "killed") as run:
        steps = run.sql("SELECT step, loss, step_ms, backwards, allocated_bytes FROM steps ORDER BY step").to_pylist()
    assert [row["step"] for row in steps] == list(range(40))
    assert steps[-1]["loss"] == 0.00759250158444047
    assert all(row["step_ms"] > 0 and row["backwards"] == 1 and row["allocated_bytes"] > 0 for row in steps[1:])


def test_accuses_the_client_that_it_accused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "-t", str(runs / "federation"), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["code"], finding["kind"], finding["clients"], finding["first"]) == (
        "FED001", "sign-flip", ["c3"], 3,
    )  # fmt: skip


@pytest.mark.parametrize("words", READING, ids=lambda words: " ".join(words[:3]))
def test_every_reading_command_opens_it(runs: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    target = [] if words[0] == "ls" else ["-t", str(runs / "federation")]
    assert main([words[0], *target, *words[1:]]) == (words[0] == "diagnose")
    captured = capsys.readouterr()
    assert captured.out or captured.err
