"""Compare runs, and find the setting that differs.

    stethos compare base new
    stethos compare base-1 base-2 new-1 new-2     several runs of each setting
    stethos compare base new --gate 0.05          for CI

Convergence, time, memory, bytes and findings of every further run are compared with those of the first. The 95 %
intervals come from resampled stretches of rounds or steps; a difference counts only if its interval excludes zero. With
two or more runs of each of two settings that differ in their seeds, they come from the spread between those runs.
With --gate REL the exit status is 1 if something is worse by more than this share, the whole interval included.
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from stethos.cli.screen.jsontext import print_json
from stethos.cli.task.target import add_directory
from stethos.errors import UsageError

if TYPE_CHECKING:
    from stethos.profile.comparison import Pair
    from stethos.profile.quantity import Quantity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="two runs or more: names, directories or pids")
    parser.add_argument(
        "--gate", type=_share, metavar="REL", help="exit with 1 if something is worse by more than this, such as 0.05"
    )
    parser.add_argument("--json", action="store_true", help="print one object")
    add_directory(parser)


def run(arguments: argparse.Namespace) -> int:
    if len(arguments.runs) < 2:
        raise UsageError("one run alone cannot be compared", hint="stethos compare A B; `stethos ls` lists runs")
    from stethos.profile.comparison import compare
    from stethos.profile.measure import read_measures
    from stethos.store.find import find_run
    from stethos.store.run import Run

    measured = []
    for name in arguments.runs:
        with Run(find_run(name, arguments.dir)) as one:
            measured.append(read_measures(one))
    pairs = compare(measured)
    failed = [] if arguments.gate is None else [bad for pair in pairs for bad in pair.worse_than(arguments.gate)]
    if arguments.json:
        gate = None if arguments.gate is None else {"limit": arguments.gate, "worse": [one.name for one in failed]}
        print_json({"pairs": [pair.as_dict() for pair in pairs], "gate": gate})
    else:
        for place, pair in enumerate(pairs):
            if place:
                print()
            _show(pair)
        if arguments.gate is not None:
            _show_gate(arguments.gate, failed)
    return 1 if failed else 0


def _show(pair: Pair) -> None:
    import textwrap

    from stethos.cli.screen.grid import Heading, show_grid
    from stethos.cli.screen.text import clean
    from stethos.cli.screen.verdict import Line, screen_width, show_lines

    width = screen_width()
    is_worse = any(pair.word_of(one) == "worse" for one in pair.quantities)
    style = "bold yellow" if is_worse else "bold green"
    head = f"{clean(pair.second)} against {clean(pair.first)}: {clean(pair.verdict)}"
    show_lines([Line(line, style) for line in textwrap.wrap(head, width, subsequent_indent="  ")])
    differ = f"they differ in {clean(pair.cause)}"
    show_lines([Line(line) for line in textwrap.wrap(differ, width, subsequent_indent="  ")])
    if pair.quantities:
        headings = [
            Heading("quantity"), Heading("first", True), Heading("second", True), Heading("change", True),
            Heading("95 % interval", True, 1), Heading("verdict"),
        ]  # fmt: skip
        show_grid(headings, [[*_cells(one), pair.word_of(one)] for one in pair.quantities])
    for word, findings in (("only in the second", pair.new_findings), ("only in the first", pair.gone_findings)):
        for text in findings[:4]:
            show_lines([Line(line) for line in textwrap.wrap(f"{word}: {clean(text)}", width, subsequent_indent="  ")])
    for note in pair.notes:
        show_lines([Line(line, "dim") for line in textwrap.wrap(f"note: {note}", width, subsequent_indent="  ")])


def _cells(one: Quantity) -> list[str]:
    change = one.change
    is_lost = math.isinf(change.value)
    between = f"{_percent(change.low)} to {_percent(change.high)}" if change.is_known and not is_lost else "-"
    return [
        one.name,
        "not finite" if is_lost and change.value < 0 else _value(one.first, one.unit),
        "not finite" if is_lost and change.value > 0 else _value(one.second, one.unit),
        _percent(change.value),
        between,
    ]


def _show_gate(gate: float, failed: list[Quantity]) -> None:
    if failed:
        listed = ", ".join(
            f"{one.name} {'not finite' if math.isinf(one.change.value) else _percent(one.change.value)}"
            for one in failed
        )
        print(f"gate {gate:.1%}: failed: {listed}")
    else:
        print(f"gate {gate:.1%}: passed")


def _value(value: float | None, unit: str) -> str:
    from stethos.cli.screen.text import bytes_text, ms_text, number_text

    if value is None or not math.isfinite(value):
        return "-"
    if unit == "bytes":
        return bytes_text(round(value))
    return ms_text(value) if unit == "ms" else number_text(float(f"{value:.4g}"))


def _percent(change: float | None) -> str:
    if change is None or not math.isfinite(change):
        return "-"
    if abs(change) < 9.995:
        return f"{change:+.1%}"
    return f"{1 + change:,.0f}x" if change < 1e6 else f"{1 + change:.1e}x"


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share: write 0.05 or 5%")
    return value
