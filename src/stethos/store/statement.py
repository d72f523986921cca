"""Which SQL may run over a run: one reading statement, nothing else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stethos.errors import QueryError
from stethos.schema import TABLES
from stethos.store.complaint import explain_error

if TYPE_CHECKING:
    import duckdb

_READ_ONLY_HINT = "queries only read: SELECT, WITH, FROM, DESCRIBE, SHOW, SUMMARIZE or EXPLAIN"
_COMMENT = r"(?:--[^\n]*(?:\n|$)|/\*.*?\*/|\s)"
_EXPLAIN = re.compile(rf"{_COMMENT}*explain\b{_COMMENT}*(?:analyze\b)?{_COMMENT}*(?:\([^()]*\))?", re.I | re.S)
_WRITING_WORD = re.compile(r"\b(?:copy|insert|update|delete|merge)\b", re.I)
_WORD = re.compile(r"[a-z_]+")
_CATALOGUE = re.compile(r"\b(?:show|describe|information_schema|(?:duckdb|pg|pragma|sqlite)_\w+)\b|^\s*desc\b", re.I)
_DYNAMIC = re.compile(r"\bquery(?:_table)?\s*\(", re.I)


def check_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The one statement of `sql`; QueryError if there are several, none, or one that does not only read.

    DuckDB calls `WITH x AS (COPY ... TO ...) SELECT ...` a SELECT, and runs
    what EXPLAIN ANALYZE explains. The first is found by binding the query
    where only reading is possible (as a subquery), the second by looking at
    what is explained.
    """
    text, kind = _single(connection, sql)
    if kind == "EXPLAIN":
        explained = _EXPLAIN.match(text)
        if explained is None or _single(connection, text[explained.end() :])[1] != "SELECT":
            raise QueryError("EXPLAIN of a statement that writes is not allowed", hint=_READ_ONLY_HINT)
        _bind_as_reader(connection, text[explained.end() :])
    elif kind == "SELECT":
        _bind_as_reader(connection, text)
    elif kind == "MULTI":
        raise QueryError(
            "PIVOT without a list of values is not allowed: it makes a type", hint="write PIVOT ... ON column IN (...)"
        )
    else:
        raise QueryError(f"{kind} is not allowed", hint=_READ_ONLY_HINT)
    return text


def tables_named(sql: str) -> set[str]:
    """The tables a query may read, by qualified name: those whose name occurs anywhere in its text."""
    if is_dynamic(sql):
        return set(TABLES)
    words = set(_WORD.findall(sql.lower()))
    return {name for name, table in TABLES.items() if table.name in words}


def is_dynamic(sql: str) -> bool:
    """Whether a query may name tables in texts."""
    return bool(_DYNAMIC.search(sql))


def lists_tables(sql: str) -> bool:
    """Whether a query may look at the list of tables, which is made only then."""
    return bool(_CATALOGUE.search(sql))


def with_sources(named: set[str]) -> set[str]:
    """These tables, and those that the views among them are made of."""
    return named.union(*(TABLES[name].reads for name in named))


def _single(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[str, str]:
    import duckdb

    try:
        sql.encode()  # an argument of a command may be anything
        statements = connection.extract_statements(sql)
    except UnicodeEncodeError:
        raise QueryError("the query is not valid UTF-8") from None
    except duckdb.Error as error:
        raise explain_error(error) from None
    if not statements:
        raise QueryError("the query is empty", hint='try `stethos query "SELECT * FROM steps LIMIT 5"`')
    if len(statements) > 1:
        raise QueryError(f"{len(statements)} statements in one query", hint="send one statement at a time")
    kind = statements[0].type.name
    return str(statements[0].query).strip().rstrip(";"), kind


def _bind_as_reader(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    if not _WRITING_WORD.search(sql):
        return
    import duckdb

    try:
        connection.execute(f"EXPLAIN SELECT * FROM (\n{sql}\n)").fetchall()
    except duckdb.BinderException as error:
        if "top level" in str(error):
            raise QueryError("a WITH clause that writes is not allowed", hint=_READ_ONLY_HINT) from None
        raise explain_error(error) from None
    except duckdb.Error as error:
        raise explain_error(error) from None
