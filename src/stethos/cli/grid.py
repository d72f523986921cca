"""Tables on a screen: drawn for a terminal, plain and aligned for a file or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from stethos.cli.text import clean, cut

_WIDEST_CELL = 80


@dataclass(frozen=True, slots=True)
class Heading:
    name: str
    is_number: bool = False


def show_grid(headings: Sequence[Heading], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. Every cell is cleaned first: it may come from a run."""
    cells = [[clean(cell) for cell in row] for row in rows]
    names = [clean(heading.name) for heading in headings]
    if sys.stdout.isatty():
        _draw(headings, names, cells)
    else:
        _align(headings, names, cells)


def _draw(headings: Sequence[Heading], names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading, name in zip(headings, names, strict=True):
        table.add_column(Text(name), justify="right" if heading.is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console(soft_wrap=False).print(table)


def _align(headings: Sequence[Heading], names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    shown = [[cut(cell, _WIDEST_CELL) for cell in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(names, *shown, strict=True)]
    for row in (names, *shown):
        parts = [
            cell.rjust(width) if heading.is_number else cell.ljust(width)
            for cell, width, heading in zip(row, widths, headings, strict=True)
        ]
        print("  ".join(parts).rstrip())
