"""What the commands about federated runs share: their options, and the words for runs that have no federation."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from stethos.cli.screen.text import clean
from stethos.cli.task.target import add_target

if TYPE_CHECKING:
    from stethos.store.run import Run


class HasFederation(Protocol):
    @property
    def federation(self) -> str | None: ...


View = TypeVar("View", bound=HasFederation)


def add_federated_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--federation", metavar="NAME", help="only this federation, where the run has several")
    parser.add_argument("--json", action="store_true", help="print one array of objects")
    parser.add_argument("--sql", action="store_true", help="print the SQL behind the table instead")


def add_round(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--round", type=int, metavar="N", help="only this round")


def show_sql(statements: Mapping[str, str]) -> int:
    """Print statements, each of which `stethos query` takes; the exit status."""
    sys.stdout.write(
        "\n".join(f"-- {clean(what)}\n{clean(sql, keep_lines=True)};\n" for what, sql in statements.items())
    )
    return 0


def say_nothing_found(run: Run, *, as_json: bool) -> int:
    """Words for a run without federated rows, which is not a mistake; the exit status."""
    if as_json:
        sys.stdout.write("[]\n")
        return 0
    if run.is_live:
        print(f"run {clean(run.name)} is running; no federated round has ended yet")
    else:
        print(f"run {clean(run.name)} has no federated rounds")
    print("hint: `stethos.federation(...)` records them, `stethos ls` lists other runs")
    return 0


def by_federation(views: Iterable[View]) -> dict[str, list[View]]:
    """Those of each federation, in their order."""
    found: dict[str, list[View]] = {}
    for one in views:
        found.setdefault(one.federation or "", []).append(one)
    return found


def scale_of(durations: Iterable[float | None]) -> float:
    """What a full bar stands for: the longest, unless it dwarfs the others, as a first round's warming up may."""
    known = [duration for duration in durations if duration is not None]
    return min(max(known), 4 * statistics.median(known)) if known else 0.0
