"""Show the rounds of a federated run: loss, failures, time, and who is waited for.

    stethos rounds
    stethos rounds --last 5

One line per round: clients that answered of those asked, loss and accuracy of the new global model, drift (how far the
round moved it), duration, wait (from the first update to the last), the slowest client, and what went wrong.
A round without an end is shown with the clients that are missing.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stethos.cli.federated import (
    Record,
    add_federated_arguments,
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
from stethos.cli.text import clean, cut, ms_text, names_text, natural_key, plural_text, short_text

if TYPE_CHECKING:
    from stethos.store.run import Run

# `turns` are what became of the clients, `odd` whose updates held NaN or infinite elements.
ROUNDS_SQL = """\
WITH turns AS (
    SELECT federation, round,
           count(DISTINCT client) AS clients,
           count(DISTINCT client) FILTER (status = 'ok') AS ok,
           coalesce(sum(loss * samples) / nullif(sum(samples) FILTER (loss IS NOT NULL), 0), avg(loss)) AS client_loss,
           arg_max(client, duration_ms) AS slowest,
           max(duration_ms) AS slowest_ms,
           list({{'client': client, 'status': status, 'error': error}} ORDER BY client)
               FILTER (status <> 'ok') AS failures
    FROM client_rounds WHERE {where} GROUP BY federation, round
), odd AS (
    SELECT federation, round, list(DISTINCT client ORDER BY client) AS nan_clients
    FROM updates
    WHERE {where} AND client IS NOT NULL AND (layer IS NULL OR kind = 'buffer') AND nan + inf > 0
    GROUP BY federation, round
)
SELECT done.federation, done.round, CASE WHEN is_last THEN 'ended' ELSE 'repeated' END AS state,
       t_ns, duration_ms, wait_ms, coalesce(selected, clients) AS selected,
       coalesce(ok, reported) AS ok, failed, loss, accuracy, client_loss, drift, global_nan, global_inf,
       slowest, slowest_ms, clients AS heard, failures, nan_clients, NULL AS at_work, NULL AS not_heard_of
FROM (SELECT *, row_number() OVER (PARTITION BY federation, round ORDER BY t_ns DESC) = 1 AS is_last
      FROM rounds WHERE {where}) AS done
LEFT JOIN turns ON is_last AND done.federation = turns.federation AND done.round = turns.round
LEFT JOIN odd ON is_last AND done.federation = odd.federation AND done.round = odd.round
ORDER BY done.federation, done.round, t_ns"""

# Clients of which something was heard in rounds that have not ended. A turn's span is written when it is over. A
# client is at work for the federation that it was in before, or the newest where that does not tell.
OPEN_SQL = r"""WITH ended AS (
    SELECT federation, arg_max(round, t_ns) AS round, max(t_ns) AS t_ns FROM rounds GROUP BY federation),
homes AS (SELECT client, any_value(federation) AS federation FROM client_rounds GROUP BY client
          HAVING count(DISTINCT federation) = 1)
SELECT heard.federation, heard.round, client, min(began_ns) AS began_ns, max(last_ns) AS last_ns, max(status) AS status
FROM (SELECT told.*, coalesce(homes.federation, (SELECT arg_max(federation, t_ns) FROM ended)) AS federation FROM (
    SELECT round, client, min(t_ns) AS began_ns, max(t_ns) AS last_ns, NULL AS status FROM steps GROUP BY round, client
    UNION ALL
    SELECT round, client, min(t_ns), max(t_ns), NULL FROM logs GROUP BY round, client
    UNION ALL
    SELECT round, client, t_ns, t_ns + (duration_ms * 1e6)::BIGINT,
           CASE WHEN name = 'client' THEN regexp_extract(fields, '"status": "(\w+)"', 1) END
    FROM spans
    UNION ALL
    SELECT round, client, t_ns, t_ns, status FROM client_reports
) AS told LEFT JOIN homes USING (client)) AS heard
LEFT JOIN ended ON heard.federation IS NOT DISTINCT FROM ended.federation
WHERE heard.round > coalesce(ended.round, -1) AND last_ns > coalesce(ended.t_ns, 0)
GROUP BY heard.federation, heard.round, client ORDER BY heard.federation, heard.round, client"""

LAST_CLIENTS_SQL = """\
SELECT DISTINCT federation, client FROM client_rounds
SEMI JOIN (SELECT federation, arg_max(round, t_ns) AS round FROM rounds GROUP BY 1) USING (federation, round)"""

_HEADINGS = (
    Heading("round", True), Heading("clients", True, 1), Heading("loss", True), Heading("accuracy", True, 3),
    Heading("client loss", True, 9), Heading("drift", True, 7), Heading("duration", True, 2), Heading("", spare=6),
    Heading("wait", True, 8), Heading("slowest", spare=5), Heading("what went wrong"),
)  # fmt: skip
_SHOWN_FIRST = 5
_SHOWN_LAST = 20
_SHOWN_BETWEEN = 8  # rounds in the middle in which something went wrong
_SPARK = 48
_BAR = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--last", type=_whole, metavar="N", help="only the last N rounds")
    parser.add_argument("--all", action="store_true", help="every round, also of a long run")
    add_federated_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    sql = ROUNDS_SQL.format(where=condition(arguments))
    if arguments.sql:
        return show_sql({"rounds": sql, "rounds without an end": OPEN_SQL, "clients of the last": LAST_CLIENTS_SQL})
    with open_target(arguments) as one:
        is_any = is_there_anything(one, arguments)
        found = records(one, sql)
        found += [row for row in _open_rounds(one, found) if arguments.federation in (None, row["federation"])]
        if not found and not is_any:
            return say_nothing_found(one, as_json=arguments.json)
        name, state = one.name, state_of(one)
    federations = by_federation(found)
    last = arguments.last or len(found)
    if arguments.json:
        from stethos.cli.jsontext import print_json_rows

        print_json_rows(row for rows in federations.values() for row in rows[-last:])
        return 0
    for index, (federation, rows) in enumerate(federations.items()):
        if index:
            print()
        _show_header(federation or name, rows, state)
        _show_rounds(rows[-last:], is_all=arguments.all or arguments.last is not None)
    return 0


# Rounds without an end ---------------------------------------------------------------------------------


def _open_rounds(one: Run, ended: Sequence[Record]) -> list[Record]:
    """Rounds that have begun and not ended, as rows like those of the others."""
    heard: dict[tuple[str | None, int], list[Record]] = {}  # a federation's name comes with its first row
    for row in records(one, OPEN_SQL):
        heard.setdefault((row["federation"], row["round"]), []).append(row)
    if not heard:
        return []
    before: dict[str | None, set[str]] = {}
    for federation, client in one.rows(LAST_CLIENTS_SQL).values:
        before.setdefault(federation, set()).add(str(client))
    is_live = one.is_live
    columns = list(ended[-1]) if ended else []
    return [
        _open_round(federation, number, rows, before.get(federation, set()), is_live, columns)
        for (federation, number), rows in heard.items()
    ]


def _open_round(
    federation: str | None,
    number: int,
    heard: Sequence[Record],
    before: set[str],
    is_live: bool,
    columns: Sequence[str],
) -> Record:
    clients = [row for row in heard if row["client"] is not None]
    done = [row for row in clients if row["status"]]
    began_ns = min(row["began_ns"] for row in heard)
    until_ns = time.time_ns() if is_live else max(row["last_ns"] for row in heard)
    seen = {row["client"] for row in clients}
    failures = [
        {"client": row["client"], "status": row["status"], "error": None} for row in done if row["status"] != "ok"
    ]
    return {
        **dict.fromkeys(columns),
        "federation": federation,
        "round": number,
        "state": "running" if is_live else "unfinished",
        "t_ns": began_ns,
        "duration_ms": (until_ns - began_ns) / 1e6,
        "selected": len(seen | before),
        "ok": len(done) - len(failures),
        "failed": len(failures),
        "failures": failures or None,
        "at_work": _sorted(row["client"] for row in clients if not row["status"]),
        "not_heard_of": _sorted(before - seen),
    }


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: natural_key(clean(name)))


# Showing -----------------------------------------------------------------------------------------------


def _show_header(name: str, rows: Sequence[Record], state: str) -> None:
    ended = [row for row in rows if row["state"] == "ended"]
    clients = max((row["selected"] or 0 for row in rows), default=0)
    wrong = sum(is_wrong(row) for row in ended)
    parts = [plural_text(len(ended), "round"), plural_text(clients, "client") + " a round", state]
    if wrong:
        parts.append(f"{ODD} trouble in {plural_text(wrong, 'round')}")
    print(f"{clean(name)}: {', '.join(parts)}")
    loss = "loss" if any(row["loss"] is not None for row in ended) else "client_loss"
    for column in (loss, "accuracy"):
        values = [row[column] for row in ended]
        known = [value for value in values if value is not None]
        if len(ended) > 1 and known:
            ends = f"{short_text(known[0])} → {short_text(known[-1])}"
            print(f"{column.replace('_', ' '):8}  {sparkline(values, _SPARK)}  {ends}")
    print()


def _show_rounds(rows: Sequence[Record], *, is_all: bool) -> None:
    chosen = list(range(len(rows))) if is_all else _chosen(rows)
    longest = scale_of(row["duration_ms"] for row in rows)
    cells: list[list[str]] = []
    styles: list[str] = []
    for place, index in enumerate(chosen):
        if place and index != chosen[place - 1] + 1:
            cells.append(["⋮", *[""] * (len(_HEADINGS) - 1)])
            styles.append("dim")
        cells.append(_cells(rows[index], longest))
        styles.append("red" if is_wrong(rows[index]) else "cyan" if rows[index]["state"] != "ended" else "")
    headings, cells = without_empty(_HEADINGS, cells)
    show_grid(headings, cells, styles)
    if len(chosen) < len(rows):
        print(f"{len(chosen)} of {len(rows):,} rounds are shown; --all shows every one, --last N the last")


def _chosen(rows: Sequence[Record]) -> list[int]:
    """Which rounds of a long run are shown: its begin, its end, and the last troubles between."""
    if len(rows) <= _SHOWN_FIRST + _SHOWN_LAST + _SHOWN_BETWEEN:
        return list(range(len(rows)))
    between = range(_SHOWN_FIRST, len(rows) - _SHOWN_LAST)
    wrong = [index for index in between if is_wrong(rows[index])][-_SHOWN_BETWEEN:]
    return [*range(_SHOWN_FIRST), *wrong, *range(len(rows) - _SHOWN_LAST, len(rows))]


def _cells(row: Record, longest_ms: float) -> list[str]:
    slowest = f"{cut(clean(row['slowest']), 16)} {ms_text(row['slowest_ms'])}" if row.get("slowest") else ""
    asked = "-" if row["selected"] is None else f"{row['ok'] or 0:,}/{row['selected']:,}"
    return [
        str(row["round"]),
        asked,
        short_text(row.get("loss")),
        short_text(row.get("accuracy")),
        short_text(row.get("client_loss")),
        short_text(row.get("drift")),
        ms_text(row["duration_ms"]),
        bar((row["duration_ms"] or 0) / longest_ms if longest_ms else None, _BAR),
        ms_text(row.get("wait_ms")),
        slowest,
        "; ".join(_troubles(row)),
    ]


def is_wrong(row: Record) -> bool:
    return bool(wrongs_of(row))


def wrongs_of(row: Record) -> list[str]:
    """What went wrong in a round, in words."""
    found = []
    if (row.get("global_nan") or 0) + (row.get("global_inf") or 0):
        found.append(f"{ODD} NaN in the global model")
    elif any(value is not None and not math.isfinite(value) for value in (row.get("loss"), row.get("accuracy"))):
        found.append(f"{ODD} the loss is no number")
    if row.get("nan_clients"):
        found.append(f"{ODD} NaN from {names_text(_sorted(row['nan_clients']))}")
    by_status: dict[str, list[str]] = {}
    for failure in row.get("failures") or ():
        by_status.setdefault(str(failure["status"]), []).append(str(failure["client"]))
    found += [f"{ODD} {status}: {names_text(_sorted(names))}" for status, names in sorted(by_status.items())]
    heard = row.get("heard") or (row["ok"] or 0) + (row["failed"] or 0)  # a client that fails may try again
    silent = (row["selected"] or 0) - heard
    if row["state"] == "ended" and silent > 0:
        found.append(f"{ODD} {silent:,} did not answer")
    return found


def _troubles(row: Record) -> list[str]:
    """What went wrong; of a round without an end first who is missing."""
    if row["state"] == "ended":
        return wrongs_of(row)
    if row["state"] == "repeated":
        return ["was repeated, see below"]
    found = ["running" if row["state"] == "running" else f"{ODD} never ended"]
    if row["at_work"]:
        found.append(f"at work: {names_text(row['at_work'])}")
    if row["not_heard_of"]:
        found.append(f"not heard of: {names_text(row['not_heard_of'])}")
    if not row["at_work"] and not row["not_heard_of"]:
        found.append("every client is done: the server is at work")
    return found + wrongs_of(row)


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("N is 1 or more")
    return value
