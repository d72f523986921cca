"""DuckDB's errors in our words: what is wrong, and the nearest names that are right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from stethos.errors import QueryError
from stethos.nearest import did_you_mean, nearest
from stethos.schema import TABLES

_NO_TABLE = re.compile(r'Table with name "?([\w./\\-]+)"? does not exist')
_NO_COLUMN = (
    re.compile(r'Referenced column "([^"]+)" not found'),
    re.compile(r'does not have a column named "([^"]+)"'),
    re.compile(r'Column "([^"]+)" in \w+ list not found'),
)
_KIND = re.compile(r"^(?:Catalog|Binder|Parser|Conversion|Invalid Input|Permission) Error: ")


def explain_error(error: Exception, named: Iterable[str] = ()) -> QueryError:
    """The QueryError for an error of DuckDB's; `named` are the tables the query mentions."""
    text = str(error).strip()
    if match := _NO_TABLE.search(text):
        return _no_table(match[1])
    for pattern in _NO_COLUMN:
        if match := pattern.search(text):
            return _no_column(match[1], sorted(named), text)
    if text.startswith("Permission Error"):
        return QueryError(
            "a query reads the tables of its run and nothing else", hint="list them with `stethos tables`"
        )
    return QueryError(_KIND.sub("", text), hint="list tables and columns with `stethos tables [TABLE]`")


def _no_table(name: str) -> QueryError:
    bare = {table.name: qualified for qualified, table in TABLES.items()}
    close = nearest(name.rpartition(".")[2], bare)
    near = f"did you mean {', '.join(bare[one] for one in close)}? " if close else ""
    return QueryError(f"no table {name!r}", hint=f"{near}tables: {', '.join(TABLES)}")


def _no_column(name: str, named: Sequence[str], text: str) -> QueryError:
    tables = [TABLES[one] for one in named] or list(TABLES.values())
    columns = [column.name for table in tables for column in table.all_columns]
    pointer = text[text.index("\nLINE ") :].strip("\n") if "\nLINE " in text else ""
    message = f"no column {name!r}" + (f" in {', '.join(named)}" if named else "")
    columns_of = "; ".join(f"{t.qualified_name}: {', '.join(c.name for c in t.all_columns)}" for t in tables[:3])
    listed = f"columns of {columns_of}"
    return QueryError(f"{message}\n{pointer}".rstrip(), hint=did_you_mean(name, columns, listed, listed))
