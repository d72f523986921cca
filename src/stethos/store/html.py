"""Tables as HTML, for notebooks. Everything shown is escaped; nothing is loaded from anywhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_MOST_ROWS = 50
_LONGEST = 200
_CELL = 'style="text-align:left;vertical-align:top;white-space:pre-wrap"'


def cell_text(value: Any) -> str:
    """A value as a reader wants it: numbers short, what was not measured as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def table_html(headings: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", note: str = "") -> str:
    """A table of at most 50 rows, with a word about the rest."""
    shown = list(rows)
    head = "".join(f"<th {_CELL}>{escape(one)}</th>" for one in headings)
    body = "".join(
        "<tr>" + "".join(f"<td {_CELL}>{escape(cell_text(value))}</td>" for value in row) + "</tr>"
        for row in shown[:_MOST_ROWS]
    )
    if len(shown) > _MOST_ROWS:
        note = f"{len(shown) - _MOST_ROWS:,} more rows. {note}".strip()
    title = f"<p><b>{escape(caption)}</b></p>" if caption else ""
    rest = f"<p>{escape(note)}</p>" if note else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if headings else ""
    return f"{title}{table}{rest}"


def summary_html(summary: Mapping[str, Any]) -> str:
    """`Run.summary()`, with the tables that have rows, fullest first."""
    facts = [(name, value) for name, value in summary.items() if not isinstance(value, Mapping)]
    counts = sorted(summary["rows"].items(), key=lambda item: -item[1])
    counted = ", ".join(f"{name} {count:,}" for name, count in counts if count)
    return table_html(("", ""), facts, f"run {summary['run']}", f"rows: {counted or 'none'}")


def _arrow_html(table: Any) -> str:
    rows = zip(*(column.slice(0, _MOST_ROWS).to_pylist() for column in table.columns), strict=True)
    more = table.num_rows - _MOST_ROWS
    return table_html(table.column_names, rows, note=f"{more:,} more rows" if more > 0 else "")


def show_arrow_in_notebooks() -> None:
    """Where IPython is running, Arrow tables are shown as tables from now on, unless somebody else does so already."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    if shell is None:
        return
    import pyarrow as pa

    formatter = shell.display_formatter.formatters["text/html"]
    if pa.Table not in formatter.type_printers:
        formatter.for_type(pa.Table, _arrow_html)
