"""A query over all ranks of a run: with rank and host in every row.

Where a query says `rank`, `process` or `host` itself, it runs once over the rows of all ranks, and every table has a
column `host` beside `rank`: so it can join one rank with another. Otherwise it runs once per rank, over that rank's
rows alone, and the results stand under each other with rank and host in front.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stethos.schema import TABLES, Source
from stethos.store.engine import Engine
from stethos.store.literal import literal
from stethos.store.rows import Rows
from stethos.store.view import VIEWS

if TYPE_CHECKING:
    import duckdb

    from stethos.store.process import ProcessReader

_OWN_RANKS = re.compile(r"\b(rank|process|host)\b", re.I)
_SCHEMA = "everyone"
Member = tuple[str, int | None, str]  # process, rank, host


def members_of(readers: Iterable[ProcessReader], rank: int | None = None) -> list[Member]:
    """The processes that have a rank, or this one; all of them where none has."""
    known = [(reader.name, reader.rank, str(reader.facts.get("host") or "")) for reader in readers]
    ranked = [member for member in known if member[1] is not None and rank in (None, member[1])]
    return sorted(ranked or [(name, None, host) for name, _, host in known], key=lambda one: (one[1] or 0, one[0]))


def rows_of_ranks(
    engine: Engine, sql: str, named: set[str], members: Sequence[Member], *, is_single: bool = False,
    limit_rows: int | None, timeout_s: float | None,
) -> Rows:  # fmt: skip
    """Run a checked statement for these processes; see above. Of one rank alone, over its rows as they are."""
    if is_single and len(members) == 1:
        with _views(engine.connection, named, members[0][0]):
            return engine.rows(sql, named, limit_rows=limit_rows, timeout_s=timeout_s)
    if _OWN_RANKS.search(re.sub(r"'(?:[^']|'')*'", "''", sql)):
        with _views(engine.connection, named, None):
            return _with_host(engine.rows(sql, named, limit_rows=limit_rows, timeout_s=timeout_s), members)
    columns: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    values: list[tuple[Any, ...]] = []
    is_cut = False
    for process, rank, host in members:
        with _views(engine.connection, named, process):
            part = engine.rows(sql, named, limit_rows=limit_rows, timeout_s=timeout_s)
        columns, types = ("rank", "host", *part.columns), ("INTEGER", "VARCHAR", *part.types)
        values += [(rank, host, *row) for row in part.values]
        is_cut = is_cut or part.is_cut
    if limit_rows is not None and len(values) > limit_rows:
        values, is_cut = values[:limit_rows], True
    return Rows(columns, types, values, is_cut)


def _with_host(rows: Rows, members: Sequence[Member]) -> Rows:
    """A result that has a rank and no host gets one."""
    if "rank" not in rows.columns or "host" in rows.columns:
        return rows
    hosts = {rank: host for _, rank, host in members}
    place = rows.columns.index("rank")
    return Rows(
        (*rows.columns, "host"), (*rows.types, "VARCHAR"),
        [(*row, hosts.get(row[place])) for row in rows.values], rows.is_cut,
    )  # fmt: skip


@contextmanager
def _views(connection: duckdb.DuckDBPyConnection, named: set[str], process: str | None) -> Iterator[None]:
    """In front of the tables: the same with a host, and with one process's rows only."""
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
    condition = f" WHERE one.process = {literal(process)}" if process is not None else ""
    undo: list[str] = []
    for name in sorted(named):
        table = TABLES[name]
        columns = {column.name for column in table.all_columns}
        if "process" not in columns:
            continue
        if table.schema == "main":
            host = "" if "host" in columns else ", other.host AS host"
            joined = "" if "host" in columns else " LEFT JOIN main.processes other ON one.process = other.process"
            connection.execute(
                f"CREATE OR REPLACE VIEW {_SCHEMA}.{table.name} AS SELECT one.*{host} "
                f"FROM main.{table.name} one{joined}{condition}"
            )
            undo.append(f"DROP VIEW {_SCHEMA}.{table.name}")
        elif process is not None and table.source is Source.VIEW:
            body = VIEWS[table.qualified_name]
            connection.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM ({body}) one{condition}")
            undo.append(f"CREATE OR REPLACE VIEW {name} AS {body}")
        elif process is not None:
            connection.execute(f"CREATE OR REPLACE TEMP TABLE kept_{table.name} AS SELECT * FROM {name}")
            connection.execute(f"DELETE FROM {name} one WHERE one.process IS DISTINCT FROM {literal(process)}")
            undo += [f"DELETE FROM {name}", f"INSERT INTO {name} SELECT * FROM kept_{table.name}"]
    connection.execute(f"SET search_path = '{_SCHEMA},main'")
    try:
        yield
    finally:
        connection.execute("SET search_path = 'main'")
        for statement in undo:
            connection.execute(statement)
