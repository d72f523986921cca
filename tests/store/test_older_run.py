"""Runs that version 0.1.0 recorded open as they did then: a training, a federation with a fault, and a killed process
whose ring nobody had emptied."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from stethos.cli.main import main
from stethos.record.place import host_key
from stethos.store.run import open_run

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "runs-0.1.0.tar.xz"
COUNTS = {
    "plain": {"steps": 60, "layers": 24, "metrics": 60, "logs": 6, "spans": 12, "modules": 13, "memory": 25},
    "federation": {"steps": 270, "layers": 12, "metrics": 12, "spans": 42, "updates": 180, "rounds": 6},
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
    for file in tmp_path.glob("*/*/process.json"):  # as if it had been this machine, which empties its own rings
        file.write_text(json.dumps(json.loads(file.read_text()) | {"host_key": host_key()}))
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
