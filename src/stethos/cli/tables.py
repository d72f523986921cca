"""Show the tables of a run, or the columns of one table.

    stethos tables
    stethos tables steps

It works without a run; with one it also counts the rows.
"""

from __future__ import annotations

import argparse

from stethos.cli.screen.grid import Heading, show_grid
from stethos.cli.screen.jsontext import print_json_rows
from stethos.cli.screen.text import clean, count_text
from stethos.cli.task.target import add_target, open_target
from stethos.errors import RunNotFoundError, UsageError
from stethos.nearest import did_you_mean
from stethos.schema import TABLES, Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", nargs="?", metavar="TABLE", help="show this table's columns")
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="print one array of objects")


def run(arguments: argparse.Namespace) -> int:
    if arguments.table:
        return _show_table(_table_named(arguments.table), as_json=arguments.json)
    name, rows = _rows_of_target(arguments)
    if arguments.json:
        print_json_rows(
            {"table": key, "per": table.per, "doc": table.doc, "rows": rows.get(key) if rows else None}
            for key, table in TABLES.items()
        )
        return 0
    if rows is None:
        show_grid([Heading("table"), Heading("one row per")], [[key, table.per] for key, table in TABLES.items()])
    else:
        headings = [Heading("table"), Heading("rows", True), Heading("one row per")]
        show_grid(headings, [[key, count_text(rows[key]), table.per] for key, table in TABLES.items()])
        print(f"\nrows of run {clean(name)}; columns: `stethos tables TABLE`")
    return 0


def _rows_of_target(arguments: argparse.Namespace) -> tuple[str, dict[str, int] | None]:
    """Rows per table of the target; None if there is no run and none was asked for."""
    try:
        with open_target(arguments) as one:
            return one.name, one.tables()
    except RunNotFoundError:
        if arguments.target is not None:
            raise
        return "", None


def _show_table(table: Table, *, as_json: bool) -> int:
    columns = [{"column": c.name, "type": c.kind.sql_type, "doc": c.doc} for c in table.all_columns]
    if as_json:
        print_json_rows(columns)
        return 0
    print(f"{table.qualified_name}: one row per {table.per}\n{table.doc}\n")
    show_grid([Heading("column"), Heading("type"), Heading("meaning")], [list(column.values()) for column in columns])
    return 0


def _table_named(name: str) -> Table:
    for table in TABLES.values():
        if name.lower() in (table.qualified_name, table.name):
            return table
    listed = f"tables: {', '.join(TABLES)}"
    raise UsageError(f"no table {name!r}", hint=did_you_mean(name, TABLES, listed, listed))
