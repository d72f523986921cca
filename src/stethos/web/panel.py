"""What a panel is: a title, a query with parameters, and how to draw its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from stethos.view.query import Parameter, Query, Scale

if TYPE_CHECKING:
    from stethos.store.rows import Rows
    from stethos.store.run import Run

Chart = Literal["tiles", "line", "heat", "stack", "bars", "waterfall", "table", "tree", "findings", "metrics", "media"]
OwnChart = Literal["table", "line", "bars", "heat"]  # of a query of the user's own
PANEL_ROWS = 60_000
PANEL_TIMEOUT_S = 20.0


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
    query: Query
    note: str = ""
    x: str = ""
    y: tuple[str, ...] = ()
    by: str = ""
    band: tuple[str, str] | tuple[()] = ()
    scale: Scale = "linear"
    unit: str = ""
    selects: Mapping[str, str] = field(default_factory=dict)
    marks: str = ""
    is_wide: bool = False
    is_optional: bool = True
    is_comparable: bool = False

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return self.query.parameters

    def as_dict(self) -> dict[str, Any]:
        """For JSON: everything a page needs to draw it."""
        plain = ("name", "page", "title", "chart", "note", "x", "y", "by", "band", "scale", "unit", "selects", "marks")
        flags = {name: getattr(self, f"is_{name}") for name in ("wide", "optional", "comparable")}
        parameters = [
            {
                "name": one.name, "title": one.title, "kind": one.kind, "listed": bool(one.values),
                "options": {
                    key: {"title": option.title, "scale": option.scale, "unit": option.unit}
                    for key, option in one.options.items()
                },
            }
            for one in self.parameters
        ]  # fmt: skip
        return {**{name: getattr(self, name) for name in plain}, **flags, "parameters": parameters}


def evaluate(run: Run, panel: Panel, /, **parameters: str | int | None) -> Rows:
    """The panel's numbers for a run as it is now; QueryError if a parameter cannot be given."""
    return panel.query.ask(run, limit_rows=PANEL_ROWS, timeout_s=PANEL_TIMEOUT_S, **parameters)
