"""Show the clients of a federated run, the odd ones first.

    stethos clients
    stethos clients --round 3 --sort duration

One line per client: turns that went well of all its turns, samples, entry loss over the rounds (the incoming global
model on its own data), its last loss, how its updates lie to those of the others (cosine to their centre, norm
relative to the median), median duration, bytes sent. `!` marks what is unusual, the last column says why in words.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from stethos.cli.federated import (
    Record,
    add_federated_arguments,
    add_round,
    by_federation,
    condition,
    is_there_anything,
    records,
    say_nothing_found,
    scale_of,
    show_sql,
    state_of,
)
from stethos.cli.grid import Heading, show_grid, without_empty
from stethos.cli.spark import ODD, bar, sparkline
from stethos.cli.target import open_target
from stethos.cli.text import (
    bytes_text,
    clean,
    cosine_text,
    count_text,
    cut,
    ms_text,
    natural_key,
    plural_text,
    short_text,
    times_text,
)

# `pace` is a turn's duration relative to the median of its round. Directions and lengths say who is odd where four
# clients and more meet.
CLIENTS_SQL = """\
WITH paced AS (
    SELECT *, CASE WHEN status = 'ok' THEN duration_ms / nullif(
               median(duration_ms) FILTER (status = 'ok') OVER (PARTITION BY federation, round), 0) END AS pace
    FROM client_rounds WHERE {where}
), turns AS (
    SELECT federation, client,
           arg_max(label, round) AS label,
           count(*) AS turns,
           count(*) FILTER (status = 'ok') AS ok,
           count(*) FILTER (status = 'failed') AS failed,
           count(*) FILTER (status = 'dropped') AS dropped,
           count(*) FILTER (status = 'timeout') AS timeout,
           arg_max(samples, round) AS samples,
           list({{'round': round, 'loss': coalesce(entry_loss, loss)}} ORDER BY round, turn) AS entry_losses,
           arg_max(loss, round) AS last_loss,
           count(*) FILTER (isnan(loss) OR isnan(entry_loss) OR isnan(exit_loss)) AS nan_losses,
           median(duration_ms) AS duration_ms,
           median(pace) AS pace,
           sum(coalesce(sent_bytes, raw_bytes))::BIGINT AS sent_bytes,
           arg_max(error, round) AS last_error,
           max(round) FILTER (error IS NOT NULL) AS last_error_round
    FROM paced GROUP BY federation, client
), sent AS (
    SELECT *, count(DISTINCT client) OVER (PARTITION BY federation, round) >= 4 AS has_others
    FROM updates WHERE {where} AND client IS NOT NULL AND (layer IS NULL OR kind = 'buffer')
), prints AS (
    SELECT federation, client,
           avg(cos_centre) FILTER (layer IS NULL) AS cosine,
           avg(cos_error) FILTER (layer IS NULL) AS cosine_error,
           avg(norm_ratio) FILTER (layer IS NULL) AS norm_ratio,
           count(DISTINCT round) FILTER (layer IS NULL AND has_others) AS compared,
           list(DISTINCT round ORDER BY round)
               FILTER (layer IS NULL AND has_others AND cos_centre + cos_error < -0.3) AS away_rounds,
           list(DISTINCT round ORDER BY round) FILTER (nan + inf > 0) AS nan_rounds
    FROM sent GROUP BY federation, client
)
SELECT *, median(cosine) OVER (PARTITION BY federation) AS typical_cosine
FROM turns LEFT JOIN prints USING (federation, client) ORDER BY federation, client"""

_HEADINGS = (
    Heading("client"), Heading("ok", True), Heading("samples", True, 7), Heading("entry loss", spare=3),
    Heading("loss", True, 2), Heading("cosine", True, 1), Heading("norm", True, 5), Heading("duration", True, 6),
    Heading("", spare=9), Heading("sent", True, 8), Heading("what is odd"),
)  # fmt: skip
_SHOWN = 30
_SPARK = 12
_BAR = 6
_FAR = 3.0  # a norm so many times the median, or so small a part of it, is unusual
_SLOW = 3.0  # so many times the median of the round, in most of at least
_SLOW_TURNS = 3  # turns: a single one may have warmed up

# What to sort by, and the key that puts the worst first.
SORTS: dict[str, Callable[[Record], Any]] = {
    "odd": lambda row: -oddity(row),
    "client": lambda row: 0,
    "ok": lambda row: row["ok"] / row["turns"],
    "samples": lambda row: _falling(row["samples"]),
    "loss": lambda row: _falling(row["last_loss"]),
    "cosine": lambda row: math.inf if row["cosine"] is None else row["cosine"],
    "norm": lambda row: -_distance(row["norm_ratio"]),
    "duration": lambda row: _falling(row["duration_ms"]),
    "sent": lambda row: _falling(row["sent_bytes"]),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_round(parser)
    parser.add_argument(
        "--sort", choices=SORTS, default="odd", help="what comes first: the worst of this column (default: odd)"
    )
    parser.add_argument("--all", action="store_true", help=f"every client, also if there are more than {_SHOWN}")
    add_federated_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    sql = CLIENTS_SQL.format(where=condition(arguments))
    if arguments.sql:
        return show_sql({"clients": sql})
    with open_target(arguments) as one:
        if not is_there_anything(one, arguments):
            return say_nothing_found(one, as_json=arguments.json)
        found = records(one, sql)
        state, name = state_of(one), one.name
    if not found and not arguments.json:
        print(f"no client took part in a round of run {clean(name)}; `stethos rounds` shows what went on")
    key = SORTS[arguments.sort]
    found.sort(key=lambda row: (str(row["federation"]), key(row), natural_key(clean(row["client"]))))
    if arguments.json:
        from stethos.cli.jsontext import print_json_rows

        print_json_rows({**row, "odd": oddities(row)} for row in found)
        return 0
    for index, (federation, rows) in enumerate(by_federation(found).items()):
        if index:
            print()
        _show(federation, rows, arguments, state)
    return 0


# What is odd -------------------------------------------------------------------------------------------


def oddities(row: Record) -> list[str]:
    """What is unusual about a client, in words, the gravest first."""
    found = []
    if row["nan_rounds"]:
        found.append(f"NaN sent in {_rounds_text(row['nan_rounds'])}")
    elif row["nan_losses"]:
        found.append(f"NaN loss in {plural_text(row['nan_losses'], 'turn')}")
    for status in ("failed", "timeout", "dropped"):
        if row[status]:
            found.append(f"{status} {row[status]:,} of {row['turns']:,}")
    if row["last_error"]:
        said = f"({cut(clean(row['last_error']).strip(), 60)})"
        found = [*found[:-1], f"{found[-1]} {said}"] if found else [f"said {said}"]
    if points_away(row):
        found.append("points away from the others")
    elif row["away_rounds"] and not do_most_point_away(row):
        found.append(f"pointed away from the others in {_rounds_text(row['away_rounds'])}")
    if is_far(row):
        found.append(f"moves {times_text(row['norm_ratio'])} as far as the median")
    if is_slow(row):
        found.append(f"takes {times_text(row['pace'])} as long as the median")
    return found


def oddity(row: Record) -> int:
    """How odd a client is; 0 is not at all."""
    is_nan = bool(row["nan_rounds"] or row["nan_losses"])
    has_failed = row["ok"] < row["turns"]
    is_away = points_away(row) or (bool(row["away_rounds"]) and not do_most_point_away(row))
    return 16 * is_nan + 8 * bool(has_failed) + 4 * is_away + 2 * is_far(row) + is_slow(row)


def points_away(row: Record) -> bool:
    is_compared = bool(row["compared"]) and row["cosine"] is not None and not do_most_point_away(row)
    return is_compared and bool(row["cosine"] < -(row["cosine_error"] or 0.0))


def do_most_point_away(row: Record) -> bool:
    """Whether there is no common direction, as with updates that are masked: then nobody is odd."""
    return row["typical_cosine"] is not None and row["typical_cosine"] < 0


def is_far(row: Record) -> bool:
    return bool(row["compared"]) and _distance(row["norm_ratio"]) > math.log(_FAR)


def is_slow(row: Record) -> bool:
    return row["pace"] is not None and row["turns"] >= _SLOW_TURNS and row["pace"] > _SLOW


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


def _rounds_text(rounds: Sequence[int]) -> str:
    return f"round {rounds[0]}" if len(rounds) == 1 else f"{len(rounds):,} rounds ({rounds[0]} to {rounds[-1]})"


# Showing -----------------------------------------------------------------------------------------------


def _show(name: str, rows: Sequence[Record], arguments: argparse.Namespace, state: str) -> None:
    odd = sum(oddity(row) > 0 for row in rows)
    numbers = {turn["round"] for row in rows for turn in row["entry_losses"]}
    which = f"round {arguments.round}" if arguments.round is not None else plural_text(len(numbers), "round")
    said = f"{ODD} {odd:,} odd" if odd else "none of them odd"
    print(f"{clean(name)}: {plural_text(len(rows), 'client')}, {which}, {state}, {said}\n")
    shown = rows if arguments.all else rows[:_SHOWN]
    longest = scale_of([row["duration_ms"] for row in rows])
    cells = [_cells(row, sorted(numbers), longest) for row in shown]
    headings, cells = without_empty(_HEADINGS, cells)
    show_grid(headings, cells, ["red" if oddity(row) else "" for row in shown])
    if len(shown) < len(rows):
        rest = len(rows) - len(shown)
        hidden = sum(oddity(row) > 0 for row in rows[len(shown) :])
        note = f", {hidden:,} of them odd" if hidden else ", none of them odd"
        print(f"{rest:,} more clients{note}; --all shows every one, --sort COLUMN others first")
    typical = [row["cosine"] for row in rows if row["cosine"] is not None]
    if len(typical) > 2:
        print(f"cosine: to the centre of the other clients' updates, here typically {statistics.median(typical):+.2f}")


def _cells(row: Record, numbers: Sequence[int], longest_ms: float) -> list[str]:
    by_round = {turn["round"]: turn["loss"] for turn in row["entry_losses"]}
    label = f" ({cut(clean(row['label']), 16)})" if row["label"] else ""
    return [
        cut(clean(row["client"]), 24) + label,
        f"{row['ok']:,}/{row['turns']:,}",
        count_text(row["samples"]),
        sparkline([by_round.get(number) for number in numbers], _SPARK)
        if len(numbers) > 1
        else short_text(next(iter(by_round.values()), None)),
        short_text(row["last_loss"]),
        _marked(cosine_text(row["cosine"]), points_away(row)),
        _marked(times_text(row["norm_ratio"]), is_far(row)),
        _marked(ms_text(row["duration_ms"]), is_slow(row)),
        bar(row["duration_ms"] / longest_ms if row["duration_ms"] and longest_ms else None, _BAR),
        "-" if row["sent_bytes"] is None else bytes_text(row["sent_bytes"]),
        f"{ODD} " * bool(oddity(row)) + "; ".join(oddities(row)),
    ]


def _marked(text: str, is_odd: bool) -> str:
    return f"! {text}" if is_odd else text
