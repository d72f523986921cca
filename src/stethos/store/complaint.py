"""DuckDB's errors in our words: what is wrong, and the nearest names that are right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from stethos.errors import QueryError
from stethos.schema import TABLES

_NO_TABLE = re.compile(r'Table with name "?([\w./\\-]+)"? does not exist')
_NO_COLUMN = (
    re.compile(r'Referenced column "([^"]+)" not found'),
    re.compile(r'does not have a column named "([^"]+)"'),
    re.compile(r'Column "([^"]+)" in \w+ list not found'),
)
_KIND = re.compile(r"^(?:Catalog|Binder|Parser|Conversion|Invalid Input|Permission) Error: ")
_NEAR = 4


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
    columns = {column.name: table for table in tables for column in table.all_columns}
    close = nearest(name, columns)
    pointer = text[text.index("\nLINE ") :].strip("\n") if "\nLINE " in text else ""
    message = f"no column {name!r}" + (f" in {', '.join(named)}" if named else "")
    near = f"did you mean {', '.join(close)}? " if close else ""
    listed = "; ".join(f"{t.qualified_name}: {', '.join(c.name for c in t.all_columns)}" for t in tables[:3])
    return QueryError(f"{message}\n{pointer}".rstrip(), hint=f"{near}columns of {listed}")


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Known names that look like this one: by spelling, or because one contains the other."""
    names = list(known)
    close = difflib.get_close_matches(name.lower(), names, n=_NEAR, cutoff=0.6)
    part = name.lower()
    close += [one for one in names if one not in close and len(part) > 2 and (part in one or one in part)]
    return close[:_NEAR]
