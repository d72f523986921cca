"""How far something is, on stderr where that is a terminal: a bar, or a line that changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stethos.cli.screen.text import clean


@contextmanager
def progress_bar(what: str, total: float) -> Iterator[Callable[[float], None]]:
    """Call what it gives with the amount done since the last call."""
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda amount: progress.advance(task, amount)


def show_progress(words: str = "") -> None:
    """Show words in place of those before; without words the line is empty again."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K  {clean(words)}" if words else "\r\x1b[K")
        sys.stderr.flush()
