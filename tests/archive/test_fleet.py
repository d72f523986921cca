"""Queries and diagnoses over all runs of an archive: on DuckDB, on Daft, on Daft on Ray; the same rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fleet_runs import ASKED, DOCUMENTED, archive_fleet, plain

import stethos
from stethos.archive.address import parse_address
from stethos.cli.main import main
from stethos.errors import QueryError, UsageError
from stethos.guard import tried

# On DuckDB only; said before anything is read.
ONLY_DUCKDB = [
    "SELECT layer, arg_max(norm, step) AS n FROM layers GROUP BY layer",
    "SELECT step + 1, step + 2 FROM steps",
]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: one of a single machine, with a NaN, and one of a federation."""
    directory = tmp_path_factory.mktemp("fleet")
    archive_fleet(directory / "runs", parse_address(directory / "archive"))
    return directory / "archive"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_query_sees_every_run(archive: Path) -> None:
    found = stethos.archive(archive).sql("SELECT run, count(*) AS n FROM steps GROUP BY run ORDER BY run").to_pylist()
    expected = []
    for name in ("fed", "single"):
        with stethos.open_run(archive / name) as run:
            expected.append({"run": name, "n": run.rows("SELECT count(*) FROM steps").values[0][0]})
    assert found == expected
    turns = stethos.archive(archive).sql("SELECT * EXCLUDE (run) FROM client_rounds WHERE run = 'fed'")
    with stethos.open_run(archive / "fed") as run:
        assert plain(turns) == plain(run.arrow("SELECT * FROM client_rounds"))


@pytest.mark.parametrize("sql", [*ASKED, *DOCUMENTED])
def test_daft_gives_the_rows_of_duckdb_or_refuses_before_it_starts(archive: Path, sql: str) -> None:
    expected = stethos.archive(archive).sql(sql)
    found, refusal = tried(stethos.archive(archive).sql, sql, engine="daft")
    if found is None:
        assert sql not in ASKED and isinstance(refusal, QueryError) and "Daft" in refusal.message
    else:
        assert found.schema.names == expected.schema.names and plain(found) == plain(expected)


@pytest.mark.parametrize("sql", ONLY_DUCKDB)
def test_what_daft_cannot_run_is_said_before_it_starts(archive: Path, sql: str) -> None:
    assert stethos.archive(archive).sql(sql).num_rows
    with pytest.raises(QueryError, match="Daft"):
        stethos.archive(archive).sql(sql, engine="daft")


@pytest.mark.parametrize("engine", ["duckdb", "daft"])
@pytest.mark.parametrize(
    "sql", ["DELETE FROM steps", "SELECT nothing FROM steps", "SELECT * FROM nowhere", "COPY steps TO 'x'"]
)
def test_a_wrong_query_is_the_same_error_on_each_engine(archive: Path, engine: str, sql: str) -> None:
    with pytest.raises(QueryError):
        stethos.archive(archive).sql(sql, engine=engine)


def test_an_engine_that_is_not_there_is_named(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "daft", None)
    with pytest.raises(UsageError, match="not installed"):
        stethos.archive(archive).sql("SELECT 1 AS one FROM steps", engine="daft")
    with pytest.raises(UsageError, match="no such engine"):
        stethos.archive(archive).sql("SELECT 1 AS one FROM steps", engine="spark")


def test_a_time_limit_that_daft_does_not_know_is_refused(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["query", "--over", str(archive), "SELECT run FROM runs", "--timeout", "5"]
    assert main(words) == 0 and main([*words, "--engine", "daft"]) == 2
    assert "leave --timeout away" in capsys.readouterr().err


def test_the_command_asks_all_runs(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "query",
        "--over",
        str(archive),
        "--csv",
        "SELECT run, max(step) AS last FROM steps GROUP BY run ORDER BY run",
    ]
    assert main(words) == 0
    here = capsys.readouterr().out
    assert here.startswith("run,last\nfed,") and main([*words, "--engine", "daft"]) == 0
    assert capsys.readouterr().out == here


def test_a_whole_archive_is_diagnosed(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--over", str(archive), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [row["run"] for row in found["runs"]] == [row["run"] for row in stethos.archive(archive).runs()]
    for row in found["runs"]:
        assert row["verdict"] == stethos.diagnose(archive / row["run"]).conclusion.text
    assert found["detectors"] and found["failed"] == []
