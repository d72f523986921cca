"""Tables for people: aligned for a terminal, and the same lines are Markdown."""

from __future__ import annotations

import math
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Grid:
    """One table: the first column names what was measured, the others are right-aligned."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=list)

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.headings, *self.rows, strict=True)]
        rules = [_rule(index, width) for index, width in enumerate(widths)]
        lines = [_line(row, widths) for row in (self.headings, rules, *self.rows)]
        notes = "".join(f"\n{note}\n" for note in self.notes)
        return f"### {self.title}\n\n" + "\n".join(lines) + "\n" + notes


def _rule(index: int, width: int) -> str:
    return "-" * width if index == 0 else "-" * (width - 1) + ":"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.ljust(width) if index == 0 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {' | '.join((first, *rest))} |"


def verdict(value: float, target: float, *, low: float = math.nan, high: float = math.nan, noise: float = 0.0) -> str:
    """Whether a figure is at or below its target.

    `in the noise` says that its interval, or a noise larger than its distance from the target, leaves that open.
    """
    word = "yes" if value <= target else "no"
    is_open = low <= target < high or noise > abs(value - target)
    return f"{word}, in the noise" if is_open else word


def say(text: str) -> None:
    """Progress, on stderr so that stdout holds only tables."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def machine() -> str:
    """Where this was measured, in one paragraph."""
    versions = ", ".join(f"{name} {_version(name)}" for name in ("torch", "numpy", "pyarrow", "duckdb"))
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores ({_cpu_model()}), {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {versions}, one thread each for BLAS and torch; "
        f"load average {load:.1f} at the start."
    )


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    found = re.search(r"model name\s*: (.+)", text)
    return found[1].strip() if found else platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def section_text(grids: Sequence[Grid], command: str) -> str:
    """A section of the page: when, where and how it was measured, and its tables."""
    head = f"Measured on {time.strftime('%Y-%m-%d')} with `{command}` on {machine()}"
    return "\n".join([head, "", *(str(grid) for grid in grids)])


def write_section(place: Path, name: str, text: str) -> None:
    """Put a section between its markers: on the page `place`, or on that page of the directory `place` which has them.

    A section that stands nowhere yet goes to the end of the page, or onto a page of its own.
    """
    begin, end = f"<!-- benchmark: {name} -->", f"<!-- end of benchmark: {name} -->"
    page = _page_of(place, name, begin) if place.is_dir() else place
    content = page.read_text(encoding="utf-8") if page.exists() else "# Benchmarks\n"
    block = f"{begin}\n\n{text.strip()}\n\n{end}"
    before, found, rest = content.partition(begin)
    if found:
        content = before + block + rest.partition(end)[2]
    else:
        content = f"{content.rstrip()}\n\n## {name.capitalize()}\n\n{block}\n"
    page.write_text(content, encoding="utf-8")


def _page_of(directory: Path, name: str, marker: str) -> Path:
    pages = [page for page in sorted(directory.glob("*.md")) if marker in page.read_text(encoding="utf-8")]
    return pages[0] if pages else directory / f"{name}.md"
