"""Made-up rows of any table."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from stethos.record.arrow import segment_schema
from stethos.schema import Kind, Table

CANARY = "canary-7391-XQ"


def rows_of(table: Table, columns: dict[str, list[Any]], count: int) -> pa.RecordBatch:
    schema = segment_schema(table)
    return pa.RecordBatch.from_pydict(
        {one.name: columns.get(one.name, [None] * count) for one in schema}, schema=schema
    )


def made_up(table: Table, count: int, chance: random.Random) -> pa.RecordBatch:
    """Rows with a canary in every text, and numbers of every kind."""
    kinds = {column.name: column.kind for column in table.all_columns}
    numbers = (0.0, -1.5, 3.25e9, float("nan"), float("inf"), 17.0, None)

    def value(kind: Kind) -> Any:
        if kind in (Kind.NAME, Kind.TEXT):
            trace = f'Traceback:\n  File "/home/{CANARY}/train.py", line 3, in fit\n    x = "{CANARY}"\n'
            return chance.choice((None, CANARY, f"ValueError: {CANARY}", f"{trace}KeyError: {CANARY}"))
        if kind is Kind.BOOL:
            return chance.random() < 0.5
        if kind is Kind.F64:
            return chance.choice(numbers)
        return chance.choice((None, 0, 5, 1000, 2**31 - 2))

    names = [one.name for one in segment_schema(table)]
    return rows_of(table, {name: [value(kinds[name]) for _ in range(count)] for name in names}, count)
