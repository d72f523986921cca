"""Show the clients of a federated run, accused ones first.

    stethos clients
    stethos clients --round 3 --sort duration

One line per client: successful turns out of all its turns, samples, entry loss round by round (of the incoming global
model on its own data), the last loss it reported, the cosine of its update to the centre of the others', its norm
relative to their median, duration, bytes sent. Samples, cosine, norm and duration are medians over its rounds. The last
column is what `stethos diagnose` found: accused clients first, in red, then those named only by a finding of severity
info.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.federated import (
    add_federated_arguments,
    add_round,
    by_federation,
    say_nothing_found,
    scale_of,
    show_sql,
)
from stethos.cli.screen.grid import Heading, show_grid, without_empty
from stethos.cli.screen.jsontext import print_json_rows
from stethos.cli.screen.spark import ODD, bar, sparkline
from stethos.cli.screen.text import (
    bytes_text,
    clean,
    cosine_text,
    count_text,
    cut,
    ms_text,
    plural_text,
    short_text,
    times_text,
)
from stethos.cli.task.target import open_target
from stethos.store.order import natural_key
from stethos.view.client import CLIENTS, clients_of, median_of_known
from stethos.view.federation import is_federated

if TYPE_CHECKING:
    from stethos.view.client import ClientView

_SHOWN = 30
_SPARK = 12
_BAR = 6

# What to sort by, and the key that puts the worst first; by findings they come sorted.
SORTS: dict[str, Callable[[ClientView], Any]] = {
    "finding": lambda one: 0,
    "client": lambda one: natural_key(clean(one.client)),
    "ok": lambda one: one.ok / one.turns,
    "samples": lambda one: _falling(one.samples),
    "entry-loss": lambda one: _falling(one.entry_loss),
    "loss": lambda one: _falling(one.loss),
    "cosine": lambda one: math.inf if one.cosine is None else one.cosine,
    "norm": lambda one: -_distance(one.norm_ratio),
    "duration": lambda one: _falling(one.duration_ms),
    "sent": lambda one: _falling(one.sent_bytes),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_round(parser)
    parser.add_argument(
        "--sort",
        choices=SORTS,
        metavar="COLUMN",
        default="finding",
        help=f"{', '.join(SORTS)}: sort by this column, worst first (default: finding)",
    )
    parser.add_argument("--all", action="store_true", help=f"show every client, even if more than {_SHOWN}")
    add_federated_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    asked = {"federation": arguments.federation, "round": arguments.round}
    if arguments.sql:
        return show_sql({"clients": CLIENTS(**asked)})
    with open_target(arguments) as one:
        found = clients_of(one, **asked)
        if not found and not is_federated(one, **asked):
            return say_nothing_found(one, as_json=arguments.json)
        state, name = one.state, one.name
    key = SORTS[arguments.sort]
    found.sort(key=lambda one: (one.federation or "", key(one)))
    if arguments.json:
        print_json_rows(one.as_dict() for one in found)
        return 0
    if not found:
        print(f"no client took part in a round of run {clean(name)}; `stethos rounds` shows what happened")
    for index, (federation, clients) in enumerate(by_federation(found).items()):
        if index:
            print()
        _show(federation, clients, arguments, state)
    return 0


def _distance(ratio: float | None) -> float:
    """How far a ratio is from 1, on a scale on which half and twice are alike."""
    if ratio is None:
        return 0.0
    return abs(math.log(ratio)) if ratio > 0 else math.inf


def _falling(value: float | None) -> float:
    """A key that puts NaN first, then the largest, and what is unknown last."""
    if value is None:
        return math.inf
    return -math.inf if math.isnan(value) else -value


def _show(name: str, clients: Sequence[ClientView], arguments: argparse.Namespace, state: str) -> None:
    numbers = sorted({turn["round"] for one in clients for turn in one.course if turn["round"] is not None})
    which = f"round {arguments.round}" if arguments.round is not None else plural_text(len(numbers), "round")
    print(f"{clean(name)}: {plural_text(len(clients), 'client')}, {which}, {state}, {_marks_text(clients)}\n")
    shown = clients if arguments.all else clients[:_SHOWN]
    longest = scale_of([one.duration_ms for one in clients])
    course = "entry_loss" if any(one.entry_loss is not None for one in clients) else "loss"
    headings, cells = without_empty(
        (
            Heading("client"), Heading("ok", True), Heading("samples", True, 7),
            Heading(course.replace("_", " "), spare=3), Heading("last loss", True, 2), Heading("cosine", True, 1),
            Heading("norm", True, 5), Heading("duration", True, 6), Heading("", spare=9), Heading("sent", True, 8),
            Heading("not ok", spare=7), Heading("found"),
        ),
        [_cells(one, numbers, course, longest) for one in shown],
    )  # fmt: skip
    show_grid(headings, cells, [_style(one) for one in shown])
    if len(shown) < len(clients):
        rest = clients[len(shown) :]
        print(f"{len(rest):,} more clients, {_marks_text(rest)}; --all shows every one, --sort COLUMN others first")
    typical = median_of_known(one.cosine for one in clients)
    if typical is not None and len(clients) > 2:
        print(f"cosine: to the centre of the other clients' updates, here typically {typical:+.2f}")


def _marks_text(clients: Sequence[ClientView]) -> str:
    marks = [one.mark for one in clients if one.mark is not None]
    accused = [mark for mark in marks if mark.is_accused]
    past = sum(mark.is_over for mark in accused)
    now = len(accused) - past
    counts = {
        f"{ODD} {{}} accused": now, "{} more, over now" if now else "{} accused, over now": past,
        "{} info": len(marks) - len(accused),
    }  # fmt: skip
    parts = [words.format(f"{count:,}") for words, count in counts.items() if count]
    return ", ".join(parts) or "none of them accused"


def _style(one: ClientView) -> str:
    if one.mark is None:
        return ""
    return "yellow" if not one.mark.is_accused or one.mark.is_over else "red"


def _cells(one: ClientView, numbers: Sequence[int], course: str, longest_ms: float) -> list[str]:
    by_round = {turn["round"]: turn[course] for turn in one.course}
    label = f" ({cut(clean(one.label), 16)})" if one.label else ""
    failures = [f"{count:,} {word}" for word in ("failed", "timeout", "dropped") if (count := getattr(one, word))]
    said = [f"({cut(clean(one.last_error).strip(), 40)})"] if one.last_error else []
    broken = ["NaN sent"] * bool(one.non_finite) + ["NaN loss"] * bool(one.nan_losses and not one.non_finite)
    return [
        cut(clean(one.client), 24) + label,
        f"{one.ok:,}/{one.turns:,}",
        count_text(None if one.samples is None else round(one.samples)),
        sparkline([by_round.get(number) for number in numbers], _SPARK)
        if len(numbers) > 1
        else short_text(next(iter(by_round.values()), None)),
        short_text(one.loss),
        cosine_text(one.cosine),
        times_text(one.norm_ratio),
        ms_text(one.duration_ms),
        bar(one.duration_ms / longest_ms if one.duration_ms and longest_ms else None, _BAR),
        "-" if one.sent_bytes is None else bytes_text(one.sent_bytes),
        " ".join([", ".join(failures + broken), *said]).strip(),
        "" if one.mark is None else f"{ODD} {one.mark.text}" if one.mark.is_accused else one.mark.text,
    ]
