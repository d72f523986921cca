"""What the commands about federated runs share: their options, their rows, and the words for runs that have none."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from stethos.cli.target import add_target
from stethos.cli.text import clean
from stethos.errors import UsageError

if TYPE_CHECKING:
    from stethos.store.run import Run

Record = dict[str, Any]
_STATE_SQL = "SELECT state FROM runs"
_KNOWN_SQL = """\
SELECT DISTINCT federation, round FROM rounds
UNION SELECT DISTINCT federation, round FROM client_reports
ORDER BY federation, round"""


def add_federated_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--federation", metavar="NAME", help="only this federation, where the run has several")
    parser.add_argument("--json", action="store_true", help="print one array of objects")
    parser.add_argument("--sql", action="store_true", help="print the SQL behind the table instead")


def add_round(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--round", type=int, metavar="N", help="only this round")


def condition(arguments: argparse.Namespace) -> str:
    """The rows that the options ask for, as SQL."""
    parts = []
    if arguments.federation is not None:
        parts.append(f"federation = {literal(arguments.federation)}")
    if getattr(arguments, "round", None) is not None:
        parts.append(f"round = {arguments.round}")
    return " AND ".join(parts) or "true"


def literal(text: str) -> str:
    """A string of SQL."""
    quoted = "'" + text.replace("'", "''") + "'"
    return "(" + quoted.replace("\0", "' || chr(0) || '") + ")" if "\0" in text else quoted


def records(run: Run, sql: str) -> list[Record]:
    """A query's rows by the names of their columns."""
    result = run.rows(sql)
    return [dict(zip(result.columns, row, strict=True)) for row in result.values]


def show_sql(statements: Mapping[str, str]) -> int:
    """Print statements, each of which `stethos query` takes; the exit status."""
    sys.stdout.write(
        "\n".join(f"-- {clean(what)}\n{clean(sql, keep_lines=True)};\n" for what, sql in statements.items())
    )
    return 0


def state_of(run: Run) -> str:
    """running, ended, failed or killed."""
    return str(run.rows(_STATE_SQL).values[0][0])


def is_there_anything(run: Run, arguments: argparse.Namespace) -> bool:
    """Whether the run has rows of a federation; UsageError if it has, but not of the one or the round asked for."""
    known = run.rows(_KNOWN_SQL).values
    name: str | None = arguments.federation
    number: int | None = getattr(arguments, "round", None)
    federations = sorted({str(federation) for federation, _ in known})
    if known and name is not None and name not in federations:
        raise UsageError(f"no federation {name!r} in run {run.name}", hint=f"it has {', '.join(federations)}")
    rounds = sorted(one for federation, one in known if one is not None and name in (None, federation))
    if known and number is not None and number not in rounds:
        span = f"rounds {rounds[0]} to {rounds[-1]}" if rounds else "none that has ended"
        raise UsageError(f"no round {number} in run {run.name}", hint=f"it has {span}: see `stethos rounds`")
    return bool(known)


def say_nothing_found(run: Run, *, as_json: bool) -> int:
    """Words for a run without federated rows, which is no mistake; the exit status."""
    if as_json:
        sys.stdout.write("[]\n")
        return 0
    if state_of(run) == "running":
        print(f"run {clean(run.name)} is running; no federated round has ended yet")
    else:
        print(f"run {clean(run.name)} has no federated rounds")
    print("hint: `stethos.federation(...)` records them, `stethos ls` lists other runs")
    return 0


def by_federation(rows: Iterable[Record]) -> dict[str, list[Record]]:
    """Rows of each federation, in their order."""
    found: dict[str, list[Record]] = {}
    for row in rows:
        found.setdefault(str(row["federation"] or ""), []).append(row)
    return found


def scale_of(durations: Iterable[float | None]) -> float:
    """What a full bar stands for: the longest, unless it dwarfs the others, as a first round's warming up may."""
    known = [duration for duration in durations if duration is not None]
    return min(max(known), 4 * statistics.median(known)) if known else 0.0
