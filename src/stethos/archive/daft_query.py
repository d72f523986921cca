"""The same SQL on Daft: on this machine, or on a Ray cluster.

DuckDB reads the query first, over empty tables: it decides what is allowed and what the columns are called. Then Daft
plans it. What Daft cannot do it says here, before anything is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stethos.archive.address import Address
from stethos.archive.catalogue import Row
from stethos.archive.fleet import Fleet, fleet_table
from stethos.errors import ArchiveError, QueryError, UsageError
from stethos.guard import tried
from stethos.redact import redact
from stethos.schema import RECORDED, TABLES, Kind, Table
from stethos.settings import store_variables

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST_REASON = 300
_KEYS = {"key_id": "AWS_ACCESS_KEY_ID", "access_key": "AWS_SECRET_ACCESS_KEY", "session_token": "AWS_SESSION_TOKEN"}
_HINT = "say it differently, or leave --engine away: DuckDB runs it"


def need_daft(where: str | None) -> Any:
    """The package `daft`, told where to work; UsageError if it is not installed or cannot get there."""
    daft, error = tried(import_module, "daft")
    if error is not None or daft is None:
        raise UsageError("this engine needs daft, which is not installed", hint="pip install 'stethos[ray]'")
    if where is None:
        tried(daft.set_runner_native)  # it can be told once
    else:
        from stethos.cluster import connect

        connect(where)
        tried(daft.set_runner_ray, noop_if_initialized=True)
    if daft.get_or_infer_runner_type() != ("native" if where is None else "ray"):
        raise UsageError("this process has used Daft on another engine before", hint="use a new process")
    return daft


def ask_daft(
    archive: Address, rows: Sequence[Row], sql: str, named: Collection[str], where: str | None = None
) -> pa.Table:
    """Run a query over all runs; `where` is the address of a Ray cluster, None for this machine."""
    with Fleet(archive, rows, is_empty=True) as empty:
        empty.define(named)
        statement = empty.engine.check(sql)
        columns = _bound(empty, statement, named)
    daft = need_daft(where)
    frames = _frames(daft, archive, rows, statement, named)
    text = _without_schemas(statement)
    plan, error = tried(daft.sql, text, **frames)
    if error is not None or plan is None:
        raise QueryError(f"Daft cannot run this query: {_reason(error)}", hint=_HINT)
    names = plan.column_names
    if len(names) != len(columns) or len(set(names)) != len(names):
        raise QueryError("Daft needs a name for every column of the result", hint="write expression AS name")
    result, error = tried(plan.to_arrow)
    if error is not None or result is None:
        raise ArchiveError(f"Daft failed: {_reason(error)}", hint="see the cluster's logs, or leave --engine away")
    return _as_duckdb(result, columns)


def _bound(empty: Fleet, statement: str, named: Collection[str]) -> list[tuple[str, Any]]:
    import duckdb

    from stethos.store.complaint import explain_error

    try:
        return empty.columns_of(statement)
    except duckdb.Error as error:
        raise explain_error(error, set(named)) from None


def _frames(daft: Any, archive: Address, rows: Sequence[Row], statement: str, named: Collection[str]) -> dict[str, Any]:
    """A lazy frame for each table: recorded ones from their files, the others as DuckDB makes them."""
    recorded = {table.qualified_name: table for table in RECORDED.values() if table.qualified_name in named}
    others = [name for name in named if name not in recorded]
    with Fleet(archive, rows) as fleet:
        files = fleet.needed(statement, named, recorded)
        frames = {
            table.name: _scan(daft, archive, table, [file.object for file in files[name]])
            for name, table in recorded.items()
        }
        fleet.define(others)
        for name in others:
            made = fleet.engine.connection.sql(f"SELECT * FROM {name}").to_arrow_table()
            frames[TABLES[name].name] = daft.from_arrow(made)
    return frames


def _scan(daft: Any, archive: Address, table: Table, objects: Sequence[str]) -> Any:
    kinds = {Kind.I32: "int32", Kind.I64: "int64", Kind.F64: "float64", Kind.BOOL: "bool"}
    wanted = {
        column.name: getattr(daft.DataType, kinds.get(column.kind, "string"))()
        for column in fleet_table(table.qualified_name).all_columns
    }
    own = {name: kind for name, kind in wanted.items() if name != "run"}
    if not objects:
        from stethos.record.arrow import full_schema

        return daft.from_arrow(full_schema(fleet_table(table.qualified_name)).empty_table())
    scheme = "" if archive.is_local else "s3://"
    frame = daft.read_parquet(
        [f"{scheme}{archive.path}/{one}" for one in objects], infer_schema=False, schema=own,
        io_config=_io_config(daft, archive), file_path_column="_path",
    )  # fmt: skip
    run = daft.col("_path").split_part("/", -3)  # RUN/TABLE/FILE; a regular expression takes ten times as long
    return frame.with_column("run", run).select(*wanted)


def _io_config(daft: Any, archive: Address) -> Any:
    if archive.is_local:
        return None
    endpoint = archive.endpoint_url()
    use_ssl = endpoint is None or not endpoint.startswith("http:")
    given = store_variables()  # workers elsewhere do not have them
    keys = {option: given[name] for option, name in _KEYS.items() if name in given}
    return daft.io.IOConfig(
        s3=daft.io.S3Config(region_name=archive.region_name(), endpoint_url=endpoint, use_ssl=use_ssl, **keys)
    )


def _without_schemas(sql: str) -> str:
    """`python.torch_trace` and `main.steps` by their plain names: Daft has no schemas."""
    names = "|".join(sorted({table.name for table in TABLES.values()}, key=len, reverse=True))
    return re.sub(rf"\b(?:python|main)\.({names})\b", r"\1", sql, flags=re.IGNORECASE)


def _as_duckdb(result: pa.Table, columns: list[tuple[str, Any]]) -> pa.Table:
    """The result with DuckDB's names and types."""
    import pyarrow as pa

    made = []
    for place, (_, kind) in enumerate(columns):
        column = result.column(place)
        cast, error = tried(column.cast, kind)
        made.append(column if error is not None else cast)
    return pa.table(made, names=[name for name, _ in columns])


def _reason(error: Exception | None) -> str:
    text = redact(" ".join(str(error).split())).removeprefix("Unsupported SQL: ")
    return text[:_LONGEST_REASON]
