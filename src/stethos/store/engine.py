"""DuckDB, shut in: it reads one run's directory and nothing else, within a time and a memory limit."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from stethos.errors import QueryError
from stethos.schema import TABLES, Source, Table
from stethos.store import limit
from stethos.store.complaint import explain_error
from stethos.store.literal import literal
from stethos.store.patience import limited
from stethos.store.rows import Rows
from stethos.store.statement import check_statement
from stethos.store.view import VIEWS

if TYPE_CHECKING:
    import pyarrow as pa

_THREADS = 4  # a training runs beside us
_FETCH_ROWS = 10_000
# The query's own fault. Anything else may be a damaged or vanished file.
_QUERY_ERRORS = (
    duckdb.ParserException,
    duckdb.CatalogException,
    duckdb.BinderException,
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.PermissionException,
)


_NO_PACKAGE = "failed to import"  # in an error, before a traceback: deep inside a type is a time zone


class FileTroubleError(Exception):
    """DuckDB failed in a way that a file may be the cause of; the message is its own."""


class Engine:
    """One in-memory DuckDB over one run directory."""

    def __init__(
        self, directory: Path, memory_bytes: int | None = None, when_stuck: Callable[[], object] | None = None
    ) -> None:
        self._when_stuck = when_stuck
        self._memory_bytes = memory_bytes or limit.memory_bytes()
        if not _is_utf8(str(directory.resolve())):
            raise QueryError(
                "a run whose path is not valid UTF-8 cannot be queried", hint="rename or move its directory"
            )
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "python_enable_replacements": False,  # SQL must not see our variables
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "temp_directory": "",
                "memory_limit": f"{self._memory_bytes >> 20}MiB",
                "threads": min(_THREADS, os.cpu_count() or 1),
            },
        )
        self._connection.execute(f"SET allowed_directories = [{literal(str(directory.resolve()))}]")
        self._connection.execute("SET allowed_configs = ['schema', 'search_path']")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")
        for schema in ("live", "python"):
            self._connection.execute(f"CREATE SCHEMA {schema}")
        self._defined: set[str] = set()
        self._made_of: dict[str, tuple[tuple[Path, ...], bool]] = {}  # files, and whether there are live rows

    def close(self) -> None:
        self._connection.close()

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """DuckDB itself, for statements of our own."""
        return self._connection

    # Tables ------------------------------------------------------------------------------------

    def require(self, names: Collection[str]) -> None:
        """See to it that these tables exist; views need those they are made of. To make all of them takes 30 ms."""
        wanted = [TABLES[name] for name in names if name not in self._defined]
        for table in sorted(wanted, key=lambda table: table.source is Source.VIEW):  # views come last
            self._define_empty(table)

    def define(self, table: Table, files: Sequence[Path], arrow: pa.Table | None, *, more: str = "") -> None:
        """Make a recorded table: these Parquet files and these rows in memory, one after the other.

        Columns that a file does not have are NULL; columns we do not know are left out. A table that has only grown
        keeps its definition, for which DuckDB looks into each of the files. `more` is SQL for columns that follow from
        the name of a file.
        """
        has_live = arrow is not None and arrow.num_rows > 0
        if has_live:
            self._connection.execute("USE live")
            self._connection.from_arrow(arrow).create_view(table.name, replace=True)
            self._connection.execute("USE main")
        made_of = tuple(files), has_live
        if self._made_of.get(table.qualified_name) == made_of:
            return
        parts = [_empty_select(table)]
        if files:
            listed = ", ".join(literal(str(path)) for path in files)
            named = ", filename = true" if more else ""
            parts.append(f"SELECT *{more} FROM read_parquet([{listed}], union_by_name = true{named})")
        if has_live:
            parts.append(f"SELECT * FROM live.{table.name}")
        # A file in which a column is of another type would give that type to the whole table.
        names = [(_quoted(column.name), column.kind.sql_type) for column in table.all_columns]
        columns = ", ".join(f"TRY_CAST({name} AS {sql_type}) AS {name}" for name, sql_type in names)
        body = " UNION ALL BY NAME ".join(parts)
        statement = f"CREATE OR REPLACE VIEW {table.qualified_name} AS SELECT {columns} FROM ({body})"
        try:
            with limited(self._interrupt, limit.DEFAULT_TIMEOUT_S, self._when_stuck):  # a pipe in the place of a file
                self._connection.execute(statement)
        except (duckdb.Error, RuntimeError) as error:  # whatever is thrown inside of it
            raise FileTroubleError(str(error)) from None
        self._defined.add(table.qualified_name)
        self._made_of[table.qualified_name] = made_of

    def define_view(self, table: Table, sql: str) -> None:
        """Make a table that is computed from others."""
        self._connection.execute(f"CREATE OR REPLACE VIEW {table.qualified_name} AS {sql}")
        self._defined.add(table.qualified_name)

    def can_read(self, path: Path) -> bool:
        """Whether DuckDB gets through a whole Parquet file."""
        try:
            self._connection.execute(f"SELECT count(COLUMNS(*)) FROM read_parquet({literal(str(path))})").fetchall()
        except (duckdb.Error, RuntimeError):
            return False
        return True

    def fill(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Make a table of the catalogue hold just these rows; a value that is not of its column's type is NULL."""
        self.require([table.qualified_name])
        names = [column.name for column in table.all_columns]
        marks = ", ".join(f"TRY_CAST(? AS {column.kind.sql_type})" for column in table.all_columns)
        self._connection.execute(f"DELETE FROM {table.qualified_name}")
        for row in rows:
            sql, values = f"INSERT INTO {table.qualified_name} VALUES ({marks})", [row[name] for name in names]
            try:
                self._connection.execute(sql, values)
            except (duckdb.Error, OverflowError):  # what JSON may say and SQL cannot
                self._connection.execute(sql, [*map(_storable, values)])

    def _define_empty(self, table: Table) -> None:
        if table.source is Source.VIEW:
            self._connection.execute(f"CREATE VIEW {table.qualified_name} AS {VIEWS[table.qualified_name]}")
        elif table.source in (Source.CATALOGUE, Source.LIVE):
            columns = ", ".join(f"{_quoted(column.name)} {column.kind.sql_type}" for column in table.all_columns)
            self._connection.execute(f"CREATE TABLE {table.qualified_name} ({columns})")
        else:
            self.define(table, (), None)
        self._defined.add(table.qualified_name)

    # Queries ------------------------------------------------------------------------------------

    def check(self, sql: str) -> str:
        """The one reading statement in `sql`, or QueryError."""
        return check_statement(self._connection, sql)

    def rows(self, sql: str, named: set[str], *, limit_rows: int | None, timeout_s: float | None) -> Rows:
        """Run a checked statement; the result as Python values."""
        with self._limits(named, timeout_s):
            result = self._connection.execute(sql)
            description = result.description or []
            odd = [column[0] for column in description if "TIME ZONE" in str(column[1])]
            if odd:  # Python values of this type need a package we do not
                text = ", ".join(f"{_quoted(name)}::VARCHAR AS {_quoted(name)}" for name in dict.fromkeys(odd))
                result = self._connection.execute(f"SELECT * REPLACE ({text}) FROM (\n{sql}\n)")
                description = result.description or []
            values = result.fetchall() if limit_rows is None else result.fetchmany(limit_rows + 1)
        is_cut = limit_rows is not None and len(values) > limit_rows
        return Rows(
            columns=_distinct([str(column[0]) for column in description]),
            types=tuple(str(column[1]) for column in description),
            values=values[:limit_rows] if is_cut else values,
            is_cut=is_cut,
            sql=sql,
        )

    def arrow(self, sql: str, named: set[str], *, limit_rows: int | None, timeout_s: float | None) -> pa.Table:
        """Run a checked statement; the result as Arrow, cut after `limit_rows`."""
        with self._limits(named, timeout_s):
            result = self._connection.sql(sql)
            if limit_rows is None:
                return result.to_arrow_table()
            import pyarrow as pa

            reader = result.to_arrow_reader(_FETCH_ROWS)
            batches, count = [], 0
            while count < limit_rows and (batch := next(reader, None)) is not None:
                batches.append(batch.slice(0, limit_rows - count))
                count += batches[-1].num_rows
            return pa.Table.from_batches(batches, schema=reader.schema)

    def batches(self, sql: str) -> pa.RecordBatchReader:
        """Run one of our own statements; its result as a stream, without limits."""
        return self._connection.sql(sql).to_arrow_reader(_FETCH_ROWS)

    @contextmanager
    def _limits(self, named: set[str], timeout_s: float | None) -> Iterator[None]:
        """Interrupt the query after a time; turn DuckDB's errors into ours, but for those of files."""
        timeout_s = limit.DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
        try:
            with limited(self._interrupt, timeout_s, self._when_stuck):
                yield
        except duckdb.InterruptException:
            raise QueryError(
                f"the query took longer than {timeout_s:g} s", hint="allow more with --timeout SECONDS, or narrow it"
            ) from None
        except (duckdb.OutOfMemoryException, MemoryError):
            raise QueryError(
                f"the query needs more than {self._memory_bytes >> 20:,} MB of memory", hint="ask for less at a time"
            ) from None
        except (OverflowError, duckdb.InvalidInputException) as error:
            if isinstance(error, duckdb.Error) and _NO_PACKAGE not in str(error):
                raise FileTroubleError(str(error)) from None
            raise QueryError(
                "a value of the result is none that Python has", hint="cast its column to text: column::VARCHAR"
            ) from None
        except _QUERY_ERRORS as error:
            raise explain_error(error, named) from None
        except duckdb.Error as error:
            raise FileTroubleError(str(error)) from None
        except RuntimeError as error:
            if "interrupted" in str(error).lower():  # how DuckDB passes Ctrl-C on
                raise KeyboardInterrupt from None
            raise FileTroubleError(str(error)) from None

    def _interrupt(self) -> bool:
        """Stop the query under way; False once the connection is closed."""
        try:
            self._connection.interrupt()
        except duckdb.ConnectionException:
            return False
        return True


def _empty_select(table: Table) -> str:
    columns = ", ".join(f"NULL::{column.kind.sql_type} AS {_quoted(column.name)}" for column in table.all_columns)
    return f"SELECT {columns} WHERE false"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _storable(value: Any) -> Any:
    """The value, if it is one that SQL has; half of a character is a question mark, all else NULL."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
    return value if is_number else None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Column names with a number added to those that come again."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        count = seen.get(name, 0)
        seen[name] = count + 1
        distinct.append(f"{name}_{count}" if count else name)
    return tuple(distinct)
