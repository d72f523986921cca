"""Draws the vitals of a run for a terminal of any width and height."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stethos.cli.screen.spark import sparkline
from stethos.cli.screen.text import (
    bytes_text,
    clean,
    count_text,
    cut,
    duration_text,
    ms_text,
    plural_text,
    share_text,
    short_text,
)
from stethos.cli.screen.top_keys import HELP
from stethos.view.vitals import ProcessVitals, Vitals

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_STATES = {"running": "green", "ended": "cyan", "failed": "red", "killed": "red"}
_SEVERITIES = {"error": "red", "warning": "yellow", "info": "cyan"}
_WIDE = 130
_OLD_S = 30.0  # a step that old is shown in red


def draw(vitals: Vitals, width: int, height: int | None = None, note: str = "", wanted: str = "") -> RenderableType:
    """One frame; with a height what does not fit is left out, findings last.

    A wide terminal has rounds and clients at the left, processes and findings at the right. Of processes those are
    shown that have `wanted` in their name.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [*_head(vitals, width)]
    room = (height or 1000) - 4
    findings = _findings(vitals, width)
    processes = [one for one in vitals.processes if wanted.lower() in f"{one.process} {one.host} {one.rank}".lower()]
    if width >= _WIDE and (vitals.rounds or vitals.clients):
        left, right = (width - 2) // 2, width - 2 - (width - 2) // 2
        both = Table.grid(padding=(0, 2, 0, 0))
        both.add_column(width=left)
        both.add_column(width=right)
        found = _findings(vitals, right)
        beside = [_processes(processes, right, max(1, room - len(found) - 3))] if processes else []
        both.add_row(Group(*_federation(vitals, left, room)[0]), Group(Text(""), *beside, *found))
        parts.append(both)
    else:
        shown, room = _federation(vitals, width, room - len(findings))
        parts += shown
        if processes:
            parts += [Text(""), _processes(processes, width, max(1, room - 3))]
        parts += findings
    if note:
        parts.append(Text(note, "dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def draw_help(width: int) -> RenderableType:
    """What the keys do."""
    table = _table(("key", False), ("does", False))
    for key, does in HELP:
        table.add_row(key, cut(does, max(10, width - 10)))
    return table


def _head(vitals: Vitals, width: int) -> list[RenderableType]:
    """The run's name and state, and its losses across the whole width."""
    from rich.text import Text

    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(cut(clean(vitals.run), max(8, width - 40)), "bold")
    head.append(f"  {vitals.state}", _STATES.get(vitals.state, ""))
    head.append(f"  {duration_text(vitals.duration_s)}")
    head.append(f"  overhead {share_text(vitals.overhead_share)}" if width >= 60 else "")
    if vitals.rows_lost or vitals.rows_dropped:
        head.append(f"  {count_text(vitals.rows_lost + vitals.rows_dropped)} rows missing", "yellow")
    speed = f" ({short_text(vitals.steps_per_s)}/s)" if vitals.steps_per_s is not None else ""
    pace = f"steps {count_text(vitals.steps)}{speed}  loss {short_text(vitals.loss)} "
    line = Text(pace, no_wrap=True, overflow="ellipsis")
    line.append(sparkline(vitals.losses, max(4, width - len(pace) - 1)) if vitals.losses else "", "cyan")
    return [head, line]


def _federation(vitals: Vitals, width: int, room: int) -> tuple[list[RenderableType], int]:
    """Rounds and clients in that many lines, and how many are left."""
    from rich.text import Text

    parts: list[RenderableType] = []
    unused = room - min(len(vitals.clients), room) - 7  # what the clients leave of a high terminal
    most_rounds = max(1, min(8, room // 3), min(len(vitals.rounds), unused))
    is_wide = width >= _WIDE // 2 - 1 and len(vitals.processes) <= 1
    most_clients = max(1, room - most_rounds - 6 if is_wide else min(6, room // 4))
    for title, rows in (
        (_rounds(vitals, width, most_rounds), min(len(vitals.rounds), most_rounds)),
        (_clients(vitals, width, most_clients), min(len(vitals.clients), most_clients)),
    ):
        if title is not None and room > 4:
            parts += [Text(""), title]
            room -= rows + 2
    return parts, room


def _table(*columns: tuple[str, bool]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name, is_number in columns:
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis")
    return table


def _rounds(vitals: Vitals, width: int, most: int) -> Table | None:
    if not vitals.rounds:
        return None
    is_wide = width >= 70
    table = _table(
        ("round", True),
        ("loss", True),
        ("accuracy", True),
        ("took", True),
        *((("clients", True),) if is_wide else ()),
        ("failed", True),
    )
    several = len({row.federation for row in vitals.rounds}) > 1
    for row in vitals.rounds[-most:]:
        name = f"{cut(clean(row.federation or ''), 12)} {row.round}" if several else str(row.round)
        clients = f"{count_text(row.ok)}/{count_text(row.selected)}"
        cells = [
            name,
            short_text(row.loss),
            short_text(row.accuracy),
            ms_text(row.duration_ms),
            *([clients] if is_wide else []),
            count_text(row.failed),
        ]
        table.add_row(*cells, style="yellow" if row.failed else "")
    return table


def _clients(vitals: Vitals, width: int, most: int) -> Table | None:
    if not vitals.clients:
        return None
    number = vitals.clients[0].round
    bad = vitals.clients_failed
    title = f"{plural_text(vitals.clients_seen, 'client')} in round {number}" + (
        f", {bad} without an update" if bad else ""
    )
    table = _table((cut(title, max(12, width - 26)), False), ("took", True), ("loss", True))
    for row in vitals.clients[:most]:
        is_ok = row.status in ("ok", None)
        said = "" if is_ok else f": {row.status} {clean(row.error or '')}".rstrip()
        name = f"{clean(row.client)}{said}" + (f"  ✗ {clean(row.mark)}" if row.mark else "")
        table.add_row(
            cut(name, max(12, width - 26)),
            ms_text(row.duration_ms),
            short_text(row.loss),
            style="red" if row.mark or not is_ok else "",
        )
    return table


def _processes(processes: Sequence[ProcessVitals], width: int, most: int) -> Table:
    is_wide = width >= 76
    wide = (("cpu", True), ("memory", True)) if is_wide else ()
    table = _table(("process", False), ("state", False), ("steps", True), ("per s", True), ("last step", True), *wide)
    running = [one for one in processes if one.state == "running"]
    others = [one for one in processes if one.state != "running"]
    ordered = [*sorted(running, key=lambda one: (one.rank is None, one.rank, one.process)), *reversed(others)]
    for one in ordered[:most]:
        name = f"rank {one.rank}" if one.rank is not None else f"pid {one.pid}"
        if width >= 60 and one.host:
            name += f" {cut(clean(one.host), 16)}"
        is_old = one.age_s is not None and one.age_s > _OLD_S
        more = (
            (share_text(one.cpu_share), bytes_text(one.rss_bytes) if one.rss_bytes is not None else "-")
            if is_wide
            else ()
        )
        table.add_row(
            name, one.state, count_text(one.steps), short_text(one.steps_per_s),
            f"{duration_text(one.age_s)} ago" if one.age_s is not None else "-", *more,
            style="red" if is_old or one.state in ("failed", "killed") else "" if one.state == "running" else "dim",
        )  # fmt: skip
    if len(ordered) > most:
        table.add_row(f"and {count_text(len(ordered) - most)} more", *[""] * (4 + len(wide)), style="dim")
    return table


def _findings(vitals: Vitals, width: int) -> list[RenderableType]:
    from rich.text import Text

    if vitals.conclusion is None:
        command = "stethos diagnose --live" if vitals.state == "running" else "stethos diagnose"
        said = Text(f"not diagnosed: `{command}`", "dim", no_wrap=True, overflow="ellipsis")
        return [Text(""), said]
    lines: list[RenderableType] = [Text(""), Text(vitals.conclusion, no_wrap=True, overflow="ellipsis")]
    for row in vitals.findings:
        line = Text(f"{row.severity:8}", _SEVERITIES.get(row.severity, ""), no_wrap=True, overflow="ellipsis")
        line.append(f"{row.code}  {clean(row.title or row.name)}", "default")
        lines.append(line)
    rest = vitals.open_findings - len(vitals.findings)
    if rest > 0:
        lines.append(Text(f"and {rest} more: `stethos diagnose`", "dim"))
    return lines
