"""Help, fitted to the terminal."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from importlib import import_module

_WIDEST = 110
_NARROWEST = 40


def width() -> int:
    """How wide help may be: the terminal, within limits that can be read."""
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size().columns - 1))


def paragraphs(text: str, columns: int | None = None) -> list[str]:
    """The lines of a docstring, its paragraphs filled anew; examples keep their lines."""
    lines: list[str] = []
    for block in textwrap.dedent(text).strip().split("\n\n"):
        is_prose = not any(line.startswith((" ", "- ", "|")) for line in block.splitlines())
        filled = textwrap.wrap(block, columns or width(), break_long_words=False, break_on_hyphens=False)
        lines += ["", *(filled if is_prose else _examples(block, columns or width()))]
    return lines[1:]


def _examples(block: str, columns: int) -> Iterator[str]:
    """The lines of an example; what is said about a command stands below it where both do not fit into a line."""
    for line in block.splitlines():
        parts = re.fullmatch(r"( +)(\S.*?) {2,}(\S.*)", line)
        if len(line) <= columns or parts is None:
            yield line
            continue
        indent, command, words = parts.groups()
        yield indent + command
        yield from textwrap.wrap(words, columns, initial_indent=2 * indent, subsequent_indent=2 * indent)


class FittedHelp(argparse.HelpFormatter):
    """Help of one command: its paragraphs filled to the terminal, its examples left alone."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(paragraphs(text, width))


def command_lines(groups: Iterable[str]) -> Iterator[str]:
    """Every command of some groups with its first sentence, under the group's title."""
    from stethos.cli.main import GROUP_TITLES, GROUPS

    for place, group in enumerate(groups):
        if place:
            yield ""
        yield f"{group}: {GROUP_TITLES[group]}" if group else f"{GROUP_TITLES[group]}:"
        for name, module in GROUPS[group].items():
            summary = (import_module(module).__doc__ or "").strip().partition("\n")[0]
            first, *rest = textwrap.wrap(summary, max(20, width() - 18)) or [""]
            yield f"  {name:15} {first}"
            yield from (" " * 18 + line for line in rest)
