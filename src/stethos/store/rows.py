"""What a query gives: one shape, whoever asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """A query's result as Python values, with its SQL; `is_cut` if there were more rows than asked for."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    values: list[tuple[Any, ...]]
    is_cut: bool = False
    sql: str = ""

    def column(self, name: str) -> list[Any]:
        """The values of a column, from the first row to the last."""
        place = self.columns.index(name)
        return [row[place] for row in self.values]

    def records(self) -> list[Record]:
        """The rows by the names of their columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.values]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, column by column; NaN and infinities as they are."""
        values = [list(column) for column in zip(*self.values, strict=True)] or [[] for _ in self.columns]
        return {
            "sql": self.sql,
            "names": list(self.columns),
            "types": list(self.types),
            "values": values,
            "rows": len(self.values),
            "is_cut": self.is_cut,
        }
