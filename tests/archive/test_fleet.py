"""Queries and diagnoses over all runs of an archive: on DuckDB, on Daft, on Daft on Ray; the same rows."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders import RunBuilder
from federated_rows import build_federation

import stethos
from stethos.archive.address import parse_address
from stethos.archive.committer import archive_run
from stethos.cli.main import main
from stethos.errors import QueryError, UsageError
from stethos.guard import tried
from stethos.record.place import RunPlace

PROJECT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```sql[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The queries of the documentation, and what a fleet is asked.
DOCUMENTED = [block for page in sorted((PROJECT / "docs").glob("*.md")) for block in _BLOCK.findall(page.read_text())]
ASKED = [
    "SELECT run, max(step) AS steps, avg(loss) AS loss FROM steps GROUP BY run ORDER BY run",
    "SELECT run, count(*) AS n, sum(nan) AS nan FROM layers GROUP BY run",
    "SELECT s.run, count(*) AS n FROM steps s JOIN runs r ON s.run = r.run WHERE r.state = 'ended' GROUP BY s.run",
    "SELECT client, count(*) AS turns, avg(compute_ms) AS ms FROM client_rounds GROUP BY client",
    "SELECT run, state, verdict FROM runs ORDER BY run",
    "SELECT run, process, host FROM processes",
    "SELECT run, code, severity FROM findings",
    "SELECT run, step, row_number() OVER (PARTITION BY run ORDER BY step, process) AS place FROM steps",
    "WITH last AS (SELECT run, max(step) AS step FROM steps GROUP BY run) SELECT * FROM last WHERE step > 3",
]
# On DuckDB only; said before anything is read.
ONLY_DUCKDB = [
    "SELECT layer, arg_max(norm, step) AS n FROM layers GROUP BY layer",
    "SELECT step + 1, step + 2 FROM steps",
]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: one of a single machine, with a NaN, and one of a federation."""
    directory = tmp_path_factory.mktemp("fleet")
    with RunBuilder(directory / "runs" / "single") as run:
        process = run.process("p0", is_alive=False)
        process.steps(12, losses=[float("nan"), *[1.5] * 11])
        process.layers(["fc1.weight", "fc2.weight"])
        process.layers(["fc1.weight", "fc2.weight"], "weight", step=3, norm=2.0)
        process.modules(["fc1", "fc2"], step=2)
        process.host_sample()
        process.log("hello")
        process.metric("accuracy", 0.5)
        process.finish()
    build_federation(directory / "runs" / "fed")
    for name in ("single", "fed"):
        archive_run(RunPlace(directory / "runs" / name), parse_address(directory / "archive"))
    return directory / "archive"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def plain(table: pa.Table) -> list[str]:
    """The rows in no order, numbers to twelve digits."""

    def cell(value: Any) -> Any:
        if isinstance(value, float):
            return "NaN" if math.isnan(value) else float(f"{value:.12g}")
        return sorted(map(repr, value)) if isinstance(value, list) else value

    return sorted(repr([cell(value) for value in row.values()]) for row in table.to_pylist())


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
    with pytest.raises(UsageError, match="Ray cluster"):
        stethos.archive(archive).sql("SELECT 1 AS one FROM steps", engine="spark")


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
