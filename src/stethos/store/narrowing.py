"""Which files a query can need, by what its WHERE says of a few columns.

It errs on one side: where the query is not understood, every file may be needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stethos.guard import tried
from stethos.schema import TABLES
from stethos.store.statement import is_dynamic

if TYPE_CHECKING:
    import duckdb

Span = tuple[Any, Any]  # from and to, both included; None: no bound
Condition = tuple[str, list[Span]]  # a column lies in one of these
Ranges = Mapping[str, Span]  # what a file holds, by column
_ANY: Span = (None, None)
_TURNED = {"LESSTHAN": "GREATERTHAN", "GREATERTHAN": "LESSTHAN"}


def needs_of(connection: duckdb.DuckDBPyConnection, sql: str, named: set[str], table: str) -> Callable[[Ranges], bool]:
    """Tells of a file with such ranges whether a query that names these tables can need it for this table."""
    readings = _readings(connection, sql, named, table)
    if readings is None:
        return lambda ranges: True
    return lambda ranges: any(_may_meet(conditions, ranges) for conditions in readings)


def _may_meet(conditions: list[Condition], ranges: Ranges) -> bool:
    for column, spans in conditions:
        low, high = ranges.get(column, _ANY)
        kind = type(low)
        is_known = low is not None and all(isinstance(end, kind) for span in spans for end in span if end is not None)
        if is_known and not any(_overlap((low, high), span) for span in spans):
            return False
    return True


def _overlap(one: Span, other: Span) -> bool:
    return (other[0] is None or other[0] <= one[1]) and (other[1] is None or one[0] <= other[1])


def _readings(
    connection: duckdb.DuckDBPyConnection, sql: str, named: set[str], table: str
) -> list[list[Condition]] | None:
    """The conditions of each place in a query that reads the table; None if there is one without any."""
    if is_dynamic(sql) or any(table in TABLES[name].reads for name in named):
        return None
    row, error = tried(lambda: connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone())
    tree = json.loads(row[0]) if error is None and row else {}
    places = sum(_is_table(node, table) for node in _nodes(tree))
    found = []
    for node in _nodes(tree):
        source = node.get("from_table")
        if node.get("type") == "SELECT_NODE" and isinstance(source, dict) and _is_table(source, table):
            name = str(source.get("alias") or source["table_name"]).lower()
            is_odd = source.get("sample") or node.get("sample") or source.get("column_name_alias")
            found.append([] if is_odd else list(_of(node["where_clause"], name)))
    return found if found and len(found) == places and all(found) else None


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for one in tree:
            yield from _nodes(one)


def _is_table(node: dict[str, Any], table: str) -> bool:
    return node.get("type") == "BASE_TABLE" and str(node.get("table_name")).lower() == table.rpartition(".")[2]


def _of(where: Any, name: str) -> Iterator[Condition]:
    """What all rows that pass a WHERE have in common."""
    if not isinstance(where, dict):
        return
    kind, children = str(where.get("type")), where.get("children", [])
    if kind == "CONJUNCTION_AND":
        for child in children:
            yield from _of(child, name)
    elif kind == "COMPARE_BETWEEN":
        column, low, high = _column(where["input"], name), _constant(where["lower"]), _constant(where["upper"])
        if column and isinstance(low, int) and isinstance(high, int):
            yield column, [(low, high)]
    elif kind == "COMPARE_IN":
        column, values = _column(children[0], name), [_constant(one) for one in children[1:]]
        if column and (all(isinstance(v, int) for v in values) or all(isinstance(v, str) for v in values)):
            yield column, [(value, value) for value in values]
    elif where.get("class") == "COMPARISON":
        kind = kind.removeprefix("COMPARE_")
        left, right = where["left"], where["right"]
        if _column(left, name) is None:
            left, right = right, left
            kind = next((kind.replace(old, new) for old, new in _TURNED.items() if kind.startswith(old)), kind)
        column, value = _column(left, name), _constant(right)
        if column is None or value is None:
            return
        if kind == "EQUAL":
            yield column, [(value, value)]
        elif isinstance(value, int) and kind.startswith(tuple(_TURNED)):
            yield column, [(None, value) if kind.startswith("LESS") else (value, None)]


def _column(node: dict[str, Any], name: str) -> str | None:
    """The name of the table's own column, in lower case."""
    parts = node.get("column_names") if node.get("class") == "COLUMN_REF" else None
    if not parts or len(parts) > 2 or (len(parts) == 2 and parts[0].lower() != name):
        return None
    return str(parts[-1]).lower()


def _constant(node: dict[str, Any]) -> int | str | None:
    literal = node.get("literal") if node.get("class") == "CONSTANT" else None
    if not isinstance(literal, dict):
        return None
    kind, text = literal.get("kind"), literal.get("text")
    if kind == "INTEGER":
        value, _ = tried(int, str(text))
        return value
    return str(text) if kind == "STRING" else None
