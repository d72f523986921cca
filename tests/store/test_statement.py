"""Queries read their run, and nothing else; mistakes are answered with names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import RunBuilder

from stethos.errors import QueryError
from stethos.schema import TABLES
from stethos.store.run import Run
from stethos.store.statement import lists_tables, tables_named


@pytest.fixture
def opened(run: RunBuilder) -> Iterator[Run]:
    process = run.process()
    process.steps(3)
    process.seal()
    with Run(run.place) as one:
        yield one


def files_below(path: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file() and one.name != "ring"}


WRITES = [
    "COPY (SELECT 1) TO '{run}/pwned.csv'",
    "COPY steps FROM '/etc/passwd'",
    "EXPORT DATABASE '{run}/pwned'",
    "ATTACH '{run}/pwned.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "SET threads = 1",
    "RESET threads",
    "USE live",
    "CREATE TABLE pwned (a INTEGER)",
    "CREATE OR REPLACE VIEW steps AS SELECT 1",
    "CREATE MACRO pwned() AS 1",
    "DROP VIEW steps",
    "INSERT INTO processes (pid) VALUES (1)",
    "UPDATE processes SET pid = 1",
    "DELETE FROM processes",
    "ALTER VIEW steps RENAME TO pwned",
    "BEGIN",
    "VACUUM",
    "CHECKPOINT",
    "PREPARE pwned AS SELECT 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY (SELECT 1) TO '{run}/pwned.csv'",
    "WITH x AS (COPY (SELECT 1) TO '{run}/pwned.csv') SELECT 1",
    "with X as (copy (select 1) to '{run}/p0/000001.steps.parquet' (format parquet)) select 1",
    "WITH x AS (/* */ COPY/**/(SELECT 1) TO '{run}/pwned.csv') SELECT 1 -- done",
    "WITH x AS (INSERT INTO processes (pid) VALUES (7) RETURNING *) SELECT * FROM x",
    "WITH x AS (DELETE FROM processes RETURNING *) SELECT * FROM x",
    "WITH x AS (UPDATE processes SET pid = 7 RETURNING *) SELECT * FROM x",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{run}/pwned.csv'",
    "-- a comment\nEXPLAIN /* and one */ ANALYZE COPY (SELECT 1) TO '{run}/pwned.csv'",
    "EXPLAIN ANALYZE WITH x AS (COPY (SELECT 1) TO '{run}/pwned.csv') SELECT 1",
    "EXPLAIN (FORMAT json) CREATE TABLE pwned (a INTEGER)",
    "EXPLAIN ANALYZE (COPY (SELECT 1) TO '{run}/pwned.csv')",
]
READS = [
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_text('{run}/../../secret')",
    "SELECT * FROM read_blob('/etc/hostname')",
    "SELECT * FROM read_json('/etc/passwd')",
    "SELECT * FROM read_parquet('/tmp/*.parquet')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "FROM '{run}/../other.parquet'",
    "SELECT getenv('HOME')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM read_text('https://example.com/')",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM query('COPY (SELECT 1) TO ''/tmp/pwned''')",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM opened",
]


@pytest.mark.parametrize("sql", [*WRITES, *READS])
def test_nothing_is_written_and_nothing_outside_the_run_is_read(opened: Run, sql: str) -> None:
    before = files_below(opened.path)
    with pytest.raises(QueryError):
        opened.rows(sql.format(run=opened.path))
    assert files_below(opened.path) == before
    assert opened.rows("SELECT count(*), max(step) FROM steps").values == [(3, 2)]
    assert opened.rows("SELECT count(*) FROM processes WHERE pid <> 7").values == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "select 'insert; copy; delete'",
        'SELECT 1 AS "update", max(step) AS copy FROM steps -- delete',
        "WITH a AS (SELECT * FROM steps) SELECT count(*) FROM a;",
        "FROM steps LIMIT 1",
        "VALUES (1), (2)",
        "DESCRIBE steps",
        "SUMMARIZE steps",
        "SHOW TABLES",
        "TABLE steps",
        "EXPLAIN SELECT * FROM steps",
        "-- why\nEXPLAIN ANALYZE SELECT count(*) FROM steps",
        "EXPLAIN (FORMAT json) SELECT replace('insert', 'a', 'b')",
        "PIVOT steps ON optimizer IN (1, 2) USING count(*) GROUP BY step",
        "\n  SELECT step FROM steps ; \n",
    ],
)
def test_every_way_of_reading_is_allowed(opened: Run, sql: str) -> None:
    assert opened.rows(sql).values
    assert opened.sql(sql).num_rows


@pytest.mark.parametrize("sql", ["", "   ", ";", "-- nothing but a comment"])
def test_an_empty_query_is_called_that(opened: Run, sql: str) -> None:
    with pytest.raises(QueryError, match="empty"):
        opened.rows(sql)


def test_a_wrong_table_gets_the_nearest_names(opened: Run) -> None:
    with pytest.raises(QueryError, match=r"no table 'stepz'\nhint: did you mean steps\? tables: runs, processes"):
        opened.rows("SELECT * FROM stepz")
    with pytest.raises(QueryError, match=r"did you mean python.torch_trace\?"):
        opened.rows("SELECT * FROM python.torch_trac")


def test_a_wrong_column_gets_the_nearest_names_and_the_columns(opened: Run) -> None:
    with pytest.raises(QueryError) as caught:
        opened.rows("SELECT los FROM steps")
    assert caught.value.message.startswith("no column 'los' in steps\nLINE 1: SELECT los")
    assert caught.value.hint.startswith("did you mean loss? columns of steps: process, rank")
    with pytest.raises(QueryError, match=r"did you mean .*grad_norm"):
        opened.rows("SELECT s.grad_nrm FROM steps s")


def test_a_syntax_error_points_at_the_place(opened: Run) -> None:
    with pytest.raises(QueryError, match=r"syntax error at or near .*\n\nLINE 1: SELECT \* FORM steps\n +\^"):
        opened.rows("SELECT * FORM steps")


@pytest.mark.parametrize(
    "sql",
    [
        "SHOW TABLES",
        "SHOW ALL TABLES",
        "SELECT table_name FROM information_schema.tables",
        "SELECT view_name FROM duckdb_views() UNION ALL SELECT table_name FROM duckdb_tables()",
        "DESCRIBE",
    ],
)
def test_a_list_of_tables_has_them_all(opened: Run, sql: str) -> None:
    found = {value for row in opened.rows(sql).values for value in row if isinstance(value, str)}
    assert {table.name for table in TABLES.values() if table.schema == "main"} <= found


def test_other_queries_do_not_make_tables_that_they_do_not_read(opened: Run) -> None:
    assert not lists_tables("SELECT step AS described FROM steps ORDER BY step DESC")
    assert opened.rows("SELECT step FROM steps ORDER BY step DESC LIMIT 1").values == [(2,)]
    made = (
        opened._open_engine().connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    )
    assert made == [("steps",)]


def test_only_tables_whose_names_occur_are_loaded() -> None:
    assert tables_named("select * from STEPS join metrics using (step)") == {"steps", "metrics"}
    assert tables_named("SELECT * FROM python.torch_trace") == {"python.torch_trace"}
    assert tables_named("SELECT 1") == set()
