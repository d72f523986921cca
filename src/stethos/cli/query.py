"""Query a run in SQL, live or finished.

    stethos query "SELECT step, loss FROM steps ORDER BY step DESC LIMIT 5"
    stethos query - < question.sql

The SQL is DuckDB's. `stethos tables` lists the tables. Queries only read, and see nothing but the run.

    stethos all query "SELECT max(step), avg(loss) FROM steps"

With `all`, the first columns are rank and host. A query that does not mention `rank` runs for each rank separately;
one that does runs over all ranks at once and can join them. A rank that has recorded nothing is named on stderr.

    stethos query --over s3://b/p "SELECT run, max(step) FROM steps GROUP BY 1"

With `--over` a query is about all runs of an archive: every table has a first column `run`. `--engine daft` runs it
on Daft, `--engine ray://HOST:PORT` on Daft on a Ray cluster (`ray` starts one here). The rows are the same; what Daft
cannot run is reported before it starts.

NULL means not measured. With --json, NaN and infinities are the strings "NaN", "Infinity" and "-Infinity",
since JSON has no such numbers.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.grid import Heading, show_grid
from stethos.cli.screen.jsontext import print_json_table
from stethos.cli.screen.text import clean
from stethos.cli.task.target import add_target, open_target
from stethos.cli.task.value import seconds, whole_number
from stethos.errors import UsageError
from stethos.export.csv_text import csv_line, plain_text
from stethos.live.target import take_apart
from stethos.store.limit import bound_memory

if TYPE_CHECKING:
    from stethos.store.rows import Rows
    from stethos.store.run import Run

_SHOWN_ROWS = 1_000
_PRINTED_ROWS = 1_000_000
_MOST_ROWS = 2**63 - 1  # that the engine can count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sql", nargs="?", metavar="SQL", help="one statement; `-` or nothing reads it from stdin")
    add_target(parser)
    parser.add_argument("--over", metavar="ADDRESS", help="all runs of an archive: s3://BUCKET/PATH or a directory")
    parser.add_argument(
        "--engine", default="duckdb", metavar="ENGINE", help="with --over: duckdb, daft, ray or ray://HOST:PORT"
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one array of objects")
    shape.add_argument("--csv", action="store_true", help="print comma-separated values with a header")
    parser.add_argument(
        "--limit",
        type=whole_number(most=_MOST_ROWS),
        metavar="N",
        help=f"at most N rows, 0 for all (default: {_SHOWN_ROWS:,} in a table, {_PRINTED_ROWS:,} in --json and --csv)",
    )
    parser.add_argument("--timeout", type=seconds, metavar="S", help="give up after S seconds (default: 30)")


def run(arguments: argparse.Namespace) -> int:
    sql = _sql_of(arguments)
    limit: int | None = arguments.limit
    if limit is None:
        limit = _PRINTED_ROWS if arguments.json or arguments.csv else _SHOWN_ROWS
    result, missing = _over(arguments, sql, limit) if arguments.over is not None else _in_run(arguments, sql, limit)
    if arguments.json:
        print_json_table(result.columns, result.values)
    elif arguments.csv:
        _print_csv(result)
    else:
        _print_grid(result)
    if result.is_cut:
        sys.stdout.flush()
        sys.stderr.write(f"only the first {limit:,} rows are shown; --limit 0 shows all\n")
    for rank, why in missing.items():
        sys.stdout.flush()
        sys.stderr.write(f"rank {rank} is missing: it {why}\n")
    return 0


def _in_run(arguments: argparse.Namespace, sql: str, limit: int) -> tuple[Rows, dict[int, str]]:
    """The rows of one run, and ranks that are missing from them."""
    if arguments.engine != "duckdb":
        raise UsageError("--engine is for queries over an archive", hint="give it with --over ADDRESS")
    wanted = take_apart(arguments.target)
    missing: dict[int, str] = {}
    with open_target(arguments) as one:
        bound_memory()
        if wanted.is_all or wanted.rank is not None:
            result = one.rows_by_rank(sql, wanted.rank, limit_rows=limit or None, timeout_s=arguments.timeout)
            missing = _missing_from(one) if wanted.is_all else {}
        else:
            result = one.rows(sql, limit_rows=limit or None, timeout_s=arguments.timeout)
    return result, missing


def _over(arguments: argparse.Namespace, sql: str, limit: int) -> tuple[Rows, dict[int, str]]:
    """The rows of all runs of an archive."""
    from stethos.archive.api import archive
    from stethos.store.rows import Rows

    if arguments.target is not None:
        raise UsageError("--over is about all runs, and a target about one", hint="leave one of them out")
    most = limit + 1 if limit else None
    found = archive(arguments.over).sql(sql, engine=arguments.engine, limit_rows=most, timeout_s=arguments.timeout)
    is_cut = bool(limit) and found.num_rows > limit
    columns = [column.to_pylist() for column in (found.slice(0, limit) if is_cut else found).columns]
    kinds = tuple(str(field.type).upper() for field in found.schema)
    values = list(zip(*columns, strict=True))
    return Rows(tuple(found.column_names), kinds, values, is_cut, sql), {}


def _missing_from(one: Run) -> dict[int, str]:
    """Ranks of the job that have recorded nothing, and those of a live run that are not alive any more."""
    rows = [row for row in one.processes() if row["rank"] is not None]
    size = max((int(row["world_size"] or 0) for row in rows), default=0)
    states = {int(row["rank"]): str(row["state"]) for row in rows}
    found = {rank: "has not joined the run" for rank in range(size) if rank not in states}
    if "running" in states.values():
        found |= {rank: f"is {state}; its rows are shown" for rank, state in states.items() if state != "running"}
    return dict(sorted(found.items()))


def _sql_of(arguments: argparse.Namespace) -> str:
    if arguments.sql in (None, "-"):
        if arguments.sql is None and sys.stdin.isatty():
            raise UsageError("no SQL given", hint='try `stethos query "SELECT * FROM steps LIMIT 5"`')
        return sys.stdin.read()
    return str(arguments.sql)


def _print_grid(result: Rows) -> None:
    numeric = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "HUGEINT")
    headings = [
        Heading(name, any(word in kind for word in numeric) and "[" not in kind and "(" not in kind)
        for name, kind in zip(result.columns, result.types, strict=True)
    ]
    if any(heading.name.startswith("explain_") for heading in headings):  # drawings, not cells
        for row in result.values:
            print(clean(str(row[-1]), keep_lines=True))
        return
    show_grid(headings, [[_cell(value) for value in row] for row in result.values])
    if not result.values:
        print("(no rows)")


def _print_csv(result: Rows) -> None:
    print(csv_line(plain_text(clean(name)) for name in result.columns))
    for row in result.values:
        print(csv_line("" if value is None else _csv_cell(value) for value in row))


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value.hex() if isinstance(value, bytes) else str(value)


def _csv_cell(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    return plain_text(clean(value.hex() if isinstance(value, bytes) else str(value), keep_lines=True))
