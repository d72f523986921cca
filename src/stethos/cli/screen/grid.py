"""Tables on a screen: drawn for a terminal, plain and aligned for a file or a pipe."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stethos.cli.screen.text import clean, cut

if TYPE_CHECKING:
    from rich.console import Console

_WIDEST_CELL = 80
_NARROWEST_LAST = 30  # the last column may be wrapped, down to this


@dataclass(frozen=True, slots=True)
class Heading:
    """A column; those with the highest `spare` above 0 are left out first where a terminal is too narrow."""

    name: str
    is_number: bool = False
    spare: int = 0


def show_grid(headings: Sequence[Heading], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> None:
    """Print a table. Every cell is cleaned first: it may come from a run.

    `styles` are colours of the rows on a terminal that has any ("" for none).
    """
    cells = [[clean(cell) for cell in row] for row in rows]
    names = [clean(heading.name) for heading in headings]
    if sys.stdout.isatty():
        _draw(headings, names, cells, styles or [""] * len(cells))
    else:
        _align(headings, names, cells)


def without_empty(headings: Sequence[Heading], rows: Sequence[Sequence[str]]) -> tuple[list[Heading], list[list[str]]]:
    """The table without the columns in which no row has anything to say; the first one stays."""
    said = [not index or any(row[index] not in ("", "-") for row in rows) for index in range(len(headings))]
    kept = [list(itertools.compress(row, said)) for row in rows]
    return list(itertools.compress(headings, said)), kept


def _draw(
    headings: Sequence[Heading], names: Sequence[str], cells: Sequence[Sequence[str]], styles: Sequence[str]
) -> None:
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    widths = [max(map(cell_len, column)) + 3 for column in zip(names, *cells, strict=True)]
    widths[-1] = min(widths[-1], _NARROWEST_LAST)
    shown = list(range(len(headings)))
    while sum(widths[index] for index in shown) > console.width:
        least = max(shown, key=lambda index: headings[index].spare)
        if not headings[least].spare:
            _draw_records(console, names, cells)
            return
        shown.remove(least)
    for index in sorted(set(range(len(headings))) - set(shown), key=lambda index: headings[index].spare):
        if (
            sum(widths[one] for one in (*shown, index)) <= console.width
        ):  # a narrow one may fit where a wide one did not
            shown = sorted((*shown, index))
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for index in shown:
        justify: Literal["right", "left"] = "right" if headings[index].is_number else "left"
        table.add_column(Text(names[index]), justify=justify, no_wrap=index != len(headings) - 1)
    for row, style in zip(cells, styles, strict=True):
        table.add_row(*(Text(row[index]) for index in shown), style=style or None)
    console.print(table)
    left_out = [names[index] for index in range(len(headings)) if index not in shown]
    if left_out:
        console.print(Text(f"a wider terminal also shows {', '.join(left_out)}", "dim"))


def _draw_records(console: Console, names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Rows too wide for the terminal, one below the other, a line per column."""
    from rich.text import Text

    width = max(map(len, names))
    for number, row in enumerate(cells, 1):
        console.rule(Text(f"row {number}"), align="left")
        for name, cell in zip(names, row, strict=True):
            console.print(Text.assemble((name.ljust(width + 2), "bold"), cell))


def _align(headings: Sequence[Heading], names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    shown = [[cut(cell, _WIDEST_CELL) for cell in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(names, *shown, strict=True)]
    for row in (names, *shown):
        parts = [
            cell.rjust(width) if heading.is_number else cell.ljust(width)
            for cell, width, heading in zip(row, widths, headings, strict=True)
        ]
        print("  ".join(parts).rstrip())
