"""Compare two clients of a federated run: their training, their updates layer by layer, their output rows.

    stethos compare-clients c1 c7
    stethos compare-clients c1 c7 --round 3

Numbers are medians over the rounds, or those of one round; loss and accuracy are the last reported. The last column of
each table says what differs. Cosine and sign agreement are measured against the other clients of the round, norms
relative to their median. The output rows are what the update does to each class.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.federated import add_federated_arguments, add_round, say_nothing_found, show_sql
from stethos.cli.screen.grid import Heading, show_grid, without_empty
from stethos.cli.screen.jsontext import print_json_rows
from stethos.cli.screen.spark import ODD, two_way_bar
from stethos.cli.screen.text import (
    bytes_text,
    clean,
    cosine_text,
    count_text,
    cut,
    ms_text,
    names_text,
    short_text,
    times_text,
)
from stethos.cli.task.target import open_target
from stethos.errors import UsageError
from stethos.nearest import did_you_mean
from stethos.store.order import natural_key
from stethos.view.client_pair import ClientPair, LayerPair, client_pair, factor_text, federation_of, statements
from stethos.view.federation import is_federated

if TYPE_CHECKING:
    from stethos.store.rows import Record

_SHOWN = 24
_BAR = 8
_NOTICEABLE = 0.1  # of the largest change
_WIDEST_NAME = 16
_NUMBER = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a client's name")
    parser.add_argument("b", metavar="B", help="another client's name")
    add_round(parser)
    parser.add_argument("--all", action="store_true", help=f"show every layer and class, even if more than {_SHOWN}")
    add_federated_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    a, b = arguments.a, arguments.b
    asked = {"federation": arguments.federation, "round": arguments.round}
    if arguments.sql:
        return show_sql(statements(a, b, **asked))
    with open_target(arguments) as one:
        if not is_federated(one, **asked):
            return say_nothing_found(one, as_json=arguments.json)
        federation, known = federation_of(one, a, b, **asked)
        a, b = _name_in(a, known), _name_in(b, known)
        if a == b:
            raise UsageError(f"{a!r} is compared with itself", hint="give the names of two clients: `stethos clients`")
        pair = client_pair(one, a, b, federation, arguments.round)
    if arguments.json:
        print_json_rows(pair.as_objects())
        return 0
    shown = tuple(cut(clean(name), _WIDEST_NAME) for name in (a, b))
    which = f"round {arguments.round}" if arguments.round is not None else "medians over the rounds"
    print(f"{shown[0]} and {shown[1]}, {which}\n")
    _show_totals(pair, shown)
    if pair.layers:
        _show_layers(pair.layers, shown, is_all=arguments.all)
    else:
        print("\nno updates of these clients were recorded, so no layers can be compared")
    if pair.classes:
        _show_classes(pair.classes, shown, is_all=arguments.all)
    return 0


def _name_in(given: str, known: Sequence[str]) -> str:
    """The client of this name, also if it is written as the screen shows it."""
    if given in known:
        return given
    alike = [name for name in known if clean(name) == given]
    if len(alike) == 1:
        return alike[0]
    shown = sorted((clean(name) for name in known), key=natural_key)
    listed = f"clients: {names_text(shown, 8)}"
    raise UsageError(f"no client {given!r}", hint=did_you_mean(given, shown, listed, listed))


# Showing -----------------------------------------------------------------------------------------------

_Format = Callable[[Any], str]
_TOTALS: tuple[tuple[str, str, _Format], ...] = (
    ("samples", "samples", lambda value: count_text(None if value is None else round(value))),
    ("local steps", "steps", lambda value: "-" if value is None else f"{value:.4g}"),
    ("entry loss", "entry_loss", short_text),
    ("exit loss", "exit_loss", short_text),
    ("last loss", "loss", short_text),
    ("last accuracy", "accuracy", short_text),
    ("duration", "duration_ms", ms_text),
    ("compute", "compute_ms", ms_text),
    ("wait", "wait_ms", ms_text),
    ("samples per s", "samples_per_s", short_text),
    ("peak memory", "peak_bytes", lambda value: "-" if value is None else bytes_text(value)),
    ("sent", "sent_bytes", lambda value: "-" if value is None else bytes_text(value)),
)


def _show_totals(pair: ClientPair, names: Sequence[str]) -> None:
    a, b = totals = pair.a, pair.b
    failures = [(row["turns"] or 0) - (row["ok"] or 0) for row in totals]
    rows = [
        ["turns", _turns_text(a), _turns_text(b), f"{ODD} failures" if bool(failures[0]) != bool(failures[1]) else ""]
    ]
    for title, column, text in _TOTALS:
        if a[column] is not None or b[column] is not None:
            nan = [isinstance(row[column], float) and math.isnan(row[column]) for row in totals]
            factor = factor_text(a[column], b[column])
            is_wait = column == "wait_ms"  # who comes last waits for nobody
            odd = f"{ODD} NaN" if nan[0] != nan[1] else f"{ODD} {factor}" if factor and not is_wait else ""
            rows.append([title, text(a[column]), text(b[column]), odd])
    if a["last_error"] or b["last_error"]:
        rows.append(["last error", *(cut(clean(row["last_error"] or "-"), 40) for row in totals), ""])
    headings = [Heading(""), Heading(names[0], True), Heading(names[1], True), Heading("differs")]
    show_grid(*without_empty(headings, rows), ["red" if row[-1] else "" for row in rows])


def _turns_text(row: Record) -> str:
    parts = [f"{row[status]:,} {status}" for status in ("failed", "dropped", "timeout") if row[status]]
    return f"{row['ok'] or 0:,} ok" + "".join(f", {part}" for part in parts)


def _show_layers(layers: Sequence[LayerPair], names: Sequence[str], *, is_all: bool) -> None:
    chosen = list(layers)
    if len(layers) > _SHOWN and not is_all:
        far = sorted(layers[1:], key=lambda one: -one.distance)[: _SHOWN - 1]
        chosen = [one for one in layers if one is layers[0] or one in far]
    rows = []
    for one in chosen:
        layer, a, b = one.layer, one.a, one.b
        differs = [f"{name} {text}".strip() for name, text in one.differs.items()]
        rows.append([
            "all weights" if layer is None else cut(clean(layer), 32),
            _both(a["norm"], b["norm"], short_text), _both(a["cosine"], b["cosine"], cosine_text),
            _both(a["norm_ratio"], b["norm_ratio"], times_text),
            _both(a["sign_agreement"], b["sign_agreement"], short_text),
            _both(a["nan"], b["nan"], count_text) if a["nan"] or b["nan"] else "",
            f"{ODD} {', '.join(differs)}" if differs else "",
        ])  # fmt: skip
    headings = [
        Heading("layer"), Heading("norm", True, 1), Heading("cosine", True), Heading("to median", True, 2),
        Heading("signs agree", True, 3), Heading("NaN", True), Heading("differs"),
    ]  # fmt: skip
    print(f"\nupdates, {names[0]} | {names[1]}")
    show_grid(*without_empty(headings, rows), ["red" if row[-1] else "" for row in rows])
    if len(chosen) < len(layers):
        print(f"the {len(chosen) - 1} most different of {len(layers) - 1:,} layers are shown; --all shows every one")


def _both(a: Any, b: Any, text: _Format) -> str:
    return "-" if a is None and b is None else f"{text(a)} | {text(b):>{_NUMBER}}"


def _show_classes(classes: dict[str, tuple[list[float], list[float]]], names: Sequence[str], *, is_all: bool) -> None:
    measure = "bias" if "bias" in classes else "mean"
    a, b = classes[measure]
    scales = [max(map(abs, filter(math.isfinite, values)), default=0.0) or 1.0 for values in (a, b)]
    chosen = list(range(len(a)))
    if len(a) > _SHOWN and not is_all:
        chosen = sorted(sorted(chosen, key=lambda index: -abs(b[index] / scales[1] - a[index] / scales[0]))[:_SHOWN])
    rows = []
    for index in chosen:
        shares = a[index] / scales[0], b[index] / scales[1]  # each of its own largest: the sizes stand above
        is_opposed = shares[0] * shares[1] < 0 and min(map(abs, shares)) > _NOTICEABLE
        rows.append([
            str(index), f"{a[index]:+.2g}", two_way_bar(shares[0], _BAR), f"{b[index]:+.2g}",
            two_way_bar(shares[1], _BAR), f"{ODD} opposed" if is_opposed else "",
        ])  # fmt: skip
    what = "bias" if measure == "bias" else "mean weight"
    print(f"\noutput layer: change of the {what} of each class")
    headings = [
        Heading("class", True), Heading(names[0], True), Heading("", spare=1), Heading(names[1], True),
        Heading("", spare=1), Heading("differs"),
    ]  # fmt: skip
    show_grid(*without_empty(headings, rows), ["red" if row[-1] else "" for row in rows])
    if len(rows) < len(a):
        print(f"the {len(rows)} most different of {len(a):,} classes are shown; --all shows every one")
