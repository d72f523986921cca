"""Show the rounds of a federated run: loss, failures, time, and who the round waited for.

    stethos rounds
    stethos rounds --last 5

One line per round: clients that answered out of those asked, loss and accuracy of the new global model, drift (how far
the round moved it), duration, wait (from the first update to the last), the client that came last, and what went wrong.
A round without an end is shown with the clients that are missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence

from stethos.cli.screen.federated import add_federated_arguments, by_federation, say_nothing_found, scale_of, show_sql
from stethos.cli.screen.grid import Heading, show_grid, without_empty
from stethos.cli.screen.jsontext import print_json_rows
from stethos.cli.screen.spark import ODD, bar, sparkline
from stethos.cli.screen.text import clean, cut, ms_text, names_text, plural_text, short_text
from stethos.cli.task.target import open_target
from stethos.cli.task.value import whole_number
from stethos.view.federation import is_federated
from stethos.view.round import LAST_CLIENTS, OPEN_ROUNDS, ROUNDS, RoundView, in_order, rounds_of

_HEADINGS = (
    Heading("round", True), Heading("clients", True, 1), Heading("loss", True), Heading("accuracy", True, 3),
    Heading("client loss", True, 9), Heading("drift", True, 7), Heading("duration", True, 2), Heading("", spare=6),
    Heading("wait", True, 8), Heading("last client", spare=5), Heading("what went wrong"),
)  # fmt: skip
_SHOWN_FIRST = 5
_SHOWN_LAST = 20
_SHOWN_BETWEEN = 8  # rounds in the middle in which something went wrong
_SPARK = 48
_BAR = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--last", type=whole_number(1), metavar="N", help="only the last N rounds")
    parser.add_argument("--all", action="store_true", help="show every round, even of a long run")
    add_federated_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.sql:
        statements = {"rounds without an end": OPEN_ROUNDS(), "clients of the last": LAST_CLIENTS()}
        return show_sql({"rounds": ROUNDS(federation=arguments.federation), **statements})
    with open_target(arguments) as one:
        found = rounds_of(one, arguments.federation)
        if not found and not is_federated(one, arguments.federation):
            return say_nothing_found(one, as_json=arguments.json)
        name, state = one.name, one.state
    federations = by_federation(found)
    last = arguments.last or len(found)
    if arguments.json:
        print_json_rows(dataclasses.asdict(row) for rows in federations.values() for row in rows[-last:])
        return 0
    for index, (federation, rows) in enumerate(federations.items()):
        if index:
            print()
        _show_header(federation or name, rows, state)
        _show_rounds(rows[-last:], is_all=arguments.all or arguments.last is not None)
    return 0


# Showing -----------------------------------------------------------------------------------------------


def _show_header(name: str, rows: Sequence[RoundView], state: str) -> None:
    ended = [row for row in rows if row.state == "ended"]
    clients = max((row.selected or 0 for row in rows), default=0)
    wrong = sum(is_wrong(row) for row in ended)
    parts = [plural_text(len(ended), "round"), plural_text(clients, "client") + " a round", state]
    if wrong:
        parts.append(f"{ODD} trouble in {plural_text(wrong, 'round')}")
    print(f"{clean(name)}: {', '.join(parts)}")
    loss = "loss" if any(row.loss is not None for row in ended) else "client_loss"
    for column in (loss, "accuracy"):
        values = [getattr(row, column) for row in ended]
        known = [value for value in values if value is not None]
        if len(ended) > 1 and known:
            ends = f"{short_text(known[0])} → {short_text(known[-1])}"
            print(f"{column.replace('_', ' '):8}  {sparkline(values, _SPARK)}  {ends}")
    print()


def _show_rounds(rows: Sequence[RoundView], *, is_all: bool) -> None:
    chosen = list(range(len(rows))) if is_all else chosen_rounds(rows, _SHOWN_FIRST, _SHOWN_LAST, _SHOWN_BETWEEN)
    longest = scale_of(row.duration_ms for row in rows)
    cells: list[list[str]] = []
    styles: list[str] = []
    for place, index in enumerate(chosen):
        if place and index != chosen[place - 1] + 1:
            cells.append(["⋮", *[""] * (len(_HEADINGS) - 1)])
            styles.append("dim")
        cells.append(_cells(rows[index], longest))
        styles.append("red" if is_wrong(rows[index]) else "cyan" if rows[index].state != "ended" else "")
    headings, cells = without_empty(_HEADINGS, cells)
    show_grid(headings, cells, styles)
    if len(chosen) < len(rows):
        print(f"{len(chosen)} of {len(rows):,} rounds are shown; --all shows every one, --last N the last")


def chosen_rounds(rows: Sequence[RoundView], first: int, last: int, wrong: int) -> list[int]:
    """Which rounds of a long run are shown: its begin, its end, and the last troubles between."""
    if len(rows) <= first + last + wrong:
        return list(range(len(rows)))
    between = [index for index in range(first, len(rows) - last) if is_wrong(rows[index])]
    return [*range(first), *between[-wrong:], *range(len(rows) - last, len(rows))]


def _cells(row: RoundView, longest_ms: float) -> list[str]:
    critical = f"{cut(clean(row.critical), 16)} {ms_text(row.critical_ms)}" if row.critical else ""
    asked = "-" if row.selected is None else f"{row.ok or 0:,}/{row.selected:,}"
    return [
        str(row.round),
        asked,
        short_text(row.loss),
        short_text(row.accuracy),
        short_text(row.client_loss),
        short_text(row.drift),
        ms_text(row.duration_ms),
        bar((row.duration_ms or 0) / longest_ms if longest_ms else None, _BAR),
        ms_text(row.wait_ms),
        critical,
        "; ".join(_troubles(row)),
    ]


def is_wrong(row: RoundView) -> bool:
    return bool(wrongs_of(row))


def wrongs_of(row: RoundView) -> list[str]:
    """What went wrong in a round, in words."""
    found = []
    if (row.global_nan or 0) + (row.global_inf or 0):
        found.append(f"{ODD} NaN in the global model")
    elif any(value is not None and not math.isfinite(value) for value in (row.loss, row.accuracy)):
        found.append(f"{ODD} the loss is not a number")
    if row.nan_clients:
        found.append(f"{ODD} NaN from {names_text(in_order(row.nan_clients))}")
    by_status: dict[str, list[str]] = {}
    for failure in row.failures or ():
        by_status.setdefault(str(failure["status"]), []).append(str(failure["client"]))
    found += [f"{ODD} {status}: {names_text(in_order(names))}" for status, names in sorted(by_status.items())]
    heard = row.heard or (row.ok or 0) + (row.failed or 0)  # a client that fails may try again
    silent = (row.selected or 0) - heard
    if row.state == "ended" and silent > 0:
        found.append(f"{ODD} {silent:,} did not answer")
    return found


def _troubles(row: RoundView) -> list[str]:
    """What went wrong; of a round without an end first who is missing."""
    if row.state == "ended":
        return wrongs_of(row)
    if row.state == "repeated":
        return ["was repeated, see below"]
    found = ["running" if row.state == "running" else f"{ODD} never ended"]
    if row.at_work:
        found.append(f"at work: {names_text(row.at_work)}")
    if row.not_heard_of:
        found.append(f"not heard of: {names_text(row.not_heard_of)}")
    if not row.at_work and not row.not_heard_of:
        found.append("all clients are done; the server is working")
    return found + wrongs_of(row)
