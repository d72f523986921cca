"""`stethos export`, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import polars
import pytest
from builders import RunBuilder

from stethos.cli.main import main
from stethos.export.formats import FORMATS

FILES = [name for name, format in FORMATS.items() if format.place == "file"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_written_once_and_replaced_on_request(
    name: str, federation_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", "-t", str(federation_path), "--to", name, "-o", str(tmp_path / "out"), "--json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["format"] == name and said["size_bytes"] == (tmp_path / "out").stat().st_size
    assert sum(said["counts"].values()) > 0 or name == "otlp-logs"  # this federation logged nothing
    assert main(words) == 2 and "exists" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_tables_reach_polars_and_pandas(federation_path: Path, tmp_path: Path) -> None:
    for to in ("parquet", "csv"):
        assert main(["export", "-t", str(federation_path), "--to", to, "-o", str(tmp_path / to)]) == 0
    exact = polars.read_parquet(tmp_path / "parquet" / "rounds.parquet")
    text = pandas.read_csv(tmp_path / "csv" / "rounds.csv")
    assert exact["round"].to_list() == text["round"].to_list() == [1, 2, 3]
    assert exact["accuracy"].to_list() == text["accuracy"].to_list() == [0.5] * 3
    assert polars.read_csv(tmp_path / "csv" / "steps.csv")["step_ms"].null_count() == 9


@pytest.mark.parametrize("name", ["tensorboard", *FILES])
def test_a_run_without_rows_is_no_error(
    name: str, run: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "-t", str(run.path), "--to", name, "-o", str(tmp_path / "out")]) == 0
    assert str(tmp_path / "out") in capsys.readouterr().out


def test_mistakes_are_named(federation_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = ["-t", str(federation_path)]
    for words, said in (
        (["export", *target, "--to", "perfeto", "-o", "x"], "perfetto"),
        (["export", *target, "--to", "perfetto", "-o", "/proc/x/y"], "cannot write to"),
        (["export", *target, "--to", "perfetto", "-o", str(tmp_path / "x"), "--limit", "0"], "--limit 0"),
        (["export", *target, "--to", "prometheus", "-o", "-"], "not to stdout"),
        (["export", *target, "--to", "otlp", "-o", "http://localhost", "--header", "x"], "NAME=VALUE"),
    ):
        assert main(words) == 2
        assert said in (error := capsys.readouterr().err) and "hint: " in error
