"""What a panel is: a title, a query with parameters, and how to draw its columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Template
from typing import TYPE_CHECKING, Any, Literal

from stethos.errors import QueryError

if TYPE_CHECKING:
    from stethos.store.run import Run

Chart = Literal["tiles", "line", "heat", "stack", "bars", "waterfall", "table", "tree", "findings"]
Scale = Literal["linear", "log", "diverging", "category"]
PANEL_ROWS = 60_000
PANEL_TIMEOUT_S = 20.0
_WHOLE = re.compile(r"-?\d{1,18}")


@dataclass(frozen=True, slots=True)
class Option:
    """One value of a choice: the SQL it stands for in the query, and how what it shows is scaled."""

    sql: str
    title: str
    scale: Scale = "linear"
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Something the reader can choose.

    With `options` it is one of these, the first by default; otherwise a text or
    a whole number that becomes a literal, and NULL if not given. `values` is a
    query whose first column lists what can be given.
    """

    name: str
    title: str
    kind: Literal["text", "number", "choice"] = "text"
    options: Mapping[str, Option] = field(default_factory=dict)
    values: str = ""

    def literal(self, given: str | int | None) -> str:
        """What takes the parameter's place in the query; QueryError if it cannot be given."""
        if self.kind == "choice":
            chosen = str(given) if given not in (None, "") else next(iter(self.options))
            if chosen not in self.options:
                raise QueryError(f"{self.name} cannot be {chosen!r}", hint=f"choose one of {', '.join(self.options)}")
            return self.options[chosen].sql
        if given in (None, ""):
            return "NULL"
        if self.kind == "number":
            if not _WHOLE.fullmatch(str(given)):
                raise QueryError(f"{self.name} is not a whole number: {given!r}", hint="leave it out for the last one")
            return str(int(given or 0))
        return "'" + str(given).replace("\0", "").replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing of a page and everything that makes it.

    `x` and `y` are columns of the result. Lines and bars may be split `by` a
    column and have a `band` of two columns around them. `selects` says which
    parameter a click sets, by column. A panel that is `optional` is left out where
    it has no rows; one with `marks` shows findings on its x axis if they count in that unit.
    """

    name: str
    page: str
    title: str
    chart: Chart
    sql: str
    note: str = ""
    x: str = ""
    y: tuple[str, ...] = ()
    by: str = ""
    band: tuple[str, str] | tuple[()] = ()
    scale: Scale = "linear"
    unit: str = ""
    parameters: tuple[Parameter, ...] = ()
    selects: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    marks: str = ""
    is_wide: bool = False
    is_optional: bool = True
    is_comparable: bool = False

    def query(self, /, **given: str | int | None) -> str:
        """The SQL for these parameters, as it can be typed by hand."""
        known = {parameter.name for parameter in self.parameters}
        unknown = sorted(set(given) - known)
        if unknown:
            raise QueryError(
                f"panel {self.name} has no parameter {unknown[0]!r}",
                hint=f"it has: {', '.join(sorted(known)) or 'none'}",
            )
        literals = {parameter.name: parameter.literal(given.get(parameter.name)) for parameter in self.parameters}
        return Template(self.sql).substitute(literals)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: everything a page needs to draw it."""
        return {
            "name": self.name,
            "page": self.page,
            "title": self.title,
            "chart": self.chart,
            "note": self.note,
            "x": self.x,
            "y": list(self.y),
            "by": self.by,
            "band": list(self.band),
            "scale": self.scale,
            "unit": self.unit,
            "parameters": [
                {
                    "name": one.name,
                    "title": one.title,
                    "kind": one.kind,
                    "options": {
                        key: {"title": option.title, "scale": option.scale, "unit": option.unit}
                        for key, option in one.options.items()
                    },
                    "listed": bool(one.values),
                }
                for one in self.parameters
            ],
            "selects": dict(self.selects),
            "marks": self.marks,
            "wide": self.is_wide,
            "optional": self.is_optional,
            "comparable": self.is_comparable,
        }


@dataclass(frozen=True, slots=True)
class Columns:
    """A query's result, column by column; `is_cut` if there were more rows than a page takes."""

    sql: str
    names: tuple[str, ...]
    types: tuple[str, ...]
    values: tuple[list[Any], ...]
    is_cut: bool = False

    @property
    def rows(self) -> int:
        return len(self.values[0]) if self.values else 0

    def column(self, name: str) -> list[Any]:
        return self.values[self.names.index(name)]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: values as they are, NaN and infinities included."""
        return {
            "sql": self.sql,
            "names": list(self.names),
            "types": list(self.types),
            "values": [list(column) for column in self.values],
            "rows": self.rows,
            "is_cut": self.is_cut,
        }


def evaluate(run: Run, panel: Panel, /, **parameters: str | int | None) -> Columns:
    """The panel's numbers for a run as it is now; QueryError if a parameter cannot be given."""
    return ask(run, panel.query(**parameters), limit_rows=PANEL_ROWS, timeout_s=PANEL_TIMEOUT_S)


def ask(run: Run, sql: str, *, limit_rows: int, timeout_s: float) -> Columns:
    """Any query's result, column by column."""
    result = run.rows(sql, limit_rows=limit_rows, timeout_s=timeout_s)
    values = tuple(list(column) for column in zip(*result.values, strict=True)) or tuple([] for _ in result.columns)
    return Columns(sql, result.columns, result.types, values, result.is_cut)
