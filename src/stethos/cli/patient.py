"""What is known about one client: its findings, and its numbers against the other clients'.

Where it takes part in several federations of a run, each by itself: they have nothing in common but its name.
"""

from __future__ import annotations

import difflib
import math
import statistics
from typing import TYPE_CHECKING, Any

from stethos.cli.spark import sparkline
from stethos.cli.text import clean, cut, natural_key, plural_text, short_text
from stethos.cli.verdict import Line, finding_lines, screen_width, show_lines
from stethos.errors import UsageError

if TYPE_CHECKING:
    from stethos.diagnose.engine import Diagnosis
    from stethos.diagnose.finding import Finding
    from stethos.store.run import Run

# What is compared: a name for people, and the SQL of one number per federation, client and round.
_TURN = "SELECT federation, client, round, {0} AS value FROM client_rounds WHERE status = 'ok'"
_UPDATE = "SELECT federation, client, round, {0} AS value FROM updates WHERE layer IS NULL AND client IS NOT NULL"
MEASURES: dict[str, str] = {
    "samples": _TURN.format("samples"),
    "loss at the start of a turn": _TURN.format("entry_loss"),
    "loss at its end": _TURN.format("exit_loss"),
    "duration, ms": _TURN.format("duration_ms"),
    "compute, ms": _TURN.format("compute_ms"),
    "upload, ms": _TURN.format("upload_ms"),
    "peak memory, MB": _TURN.format("peak_bytes / 1e6"),
    "norm of its update": _UPDATE.format("norm"),
    "cosine to the centre": _UPDATE.format("cos_centre"),
    "elements moving with the others": _UPDATE.format("sign_agreement"),
}
_STATUS_SQL = "SELECT federation, client, status, count(*) FROM client_rounds GROUP BY ALL"
_SPARK = 24


def show_client(diagnosis: Diagnosis, run: Run, client: str, target: str, *, as_json: bool) -> int:
    """Print what is known; the exit status is 1 if something is wrong with this client."""
    turns = _turns(run, client)
    found = findings_about(diagnosis, client)
    measures = [made for name, sql in MEASURES.items() for made in _measures(run, client, name, sql)]
    status = int(any(one.is_open and one.severity.word != "info" for one in found))
    if as_json:
        from stethos.cli.jsontext import print_json

        print_json(
            {
                "client": client,
                "turns": {word: sum(each.get(word, 0) for each in turns.values()) for word in _every(turns)},
                "federations": {name or "": counts for name, counts in turns.items()},
                "measures": measures,
                "findings": [one.as_dict() for one in found],
            }
        )
        return status
    for place, (federation, counts) in enumerate(turns.items()):
        if place:
            show_lines([Line("")])
        mine = [one for one in found if len(turns) == 1 or one.subject.federation in (None, federation)]
        where = f"federation {cut(clean(federation or '-'), 40)} in run" if len(turns) > 1 else "run"
        head = f"client {cut(clean(client), 40)} of {where} {clean(run.name)}: {_words(counts, mine)}"
        show_lines([Line(head, "bold")])
        for one in mine[:2]:
            show_lines([Line("")])
            show_lines(finding_lines(one, target, screen_width(), is_client=True))
        show_lines([Line(""), *_table([one for one in measures if one["federation"] == federation])])
    return status


def _every(turns: dict[str | None, dict[str, int]]) -> list[str]:
    return list(dict.fromkeys(word for counts in turns.values() for word in counts))


def findings_about(diagnosis: Diagnosis, client: str) -> list[Finding]:
    """Findings that name the client, also among those that follow from another."""
    every = [effect for one in diagnosis.findings for effect in (one, *one.consequences)]
    return [one for one in every if client in one.subject.clients]


def _turns(run: Run, client: str) -> dict[str | None, dict[str, int]]:
    """How often the client's turn ended how, by federation; UsageError if the run does not know it."""
    rows = run.rows(_STATUS_SQL).values
    names = sorted({str(row[1]) for row in rows if row[1] is not None}, key=natural_key)
    if not names:
        raise UsageError(f"run {run.name} has no clients", hint="it is no federated training; see `stethos diagnose`")
    if client not in names:
        near = difflib.get_close_matches(client, names, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"clients: {', '.join(names[:10])}"
        raise UsageError(f"no client {client!r} in run {run.name}", hint=hint)
    found: dict[str | None, dict[str, int]] = {}
    for federation, _, status, count in sorted((row for row in rows if row[1] == client), key=str):
        found.setdefault(federation, {})[str(status)] = int(count)
    return found


def _words(turns: dict[str, int], found: list[Finding]) -> str:
    total = sum(turns.values())
    odd = [f"{count} {status}" for status, count in turns.items() if status != "ok"]
    text = f"{plural_text(total, 'turn')}{', ' + ', '.join(odd) if odd else ''}"
    return f"{text}; {plural_text(len(found), 'finding')}" if found else f"{text}; nothing found against it"


def _measures(run: Run, client: str, name: str, sql: str) -> list[dict[str, Any]]:
    """One number of the client against the others, in each federation that it takes part in."""
    values: dict[str | None, dict[str, dict[int, float]]] = {}
    for federation, owner, number, value in run.rows(sql + " ORDER BY round").values:
        if owner is not None and number is not None and value is not None:
            values.setdefault(federation, {}).setdefault(str(owner), {})[int(number)] = float(value)
    return [
        {"measure": name, "federation": federation, **_against_others(client, courses), "sql": sql}
        for federation, courses in values.items()
        if client in courses
    ]


def _against_others(client: str, values: dict[str, dict[int, float]]) -> dict[str, Any]:
    """The client's median, the others', its place among them, and its course."""
    typical = {owner: _median(list(course.values())) for owner, course in values.items()}
    others = [value for owner, value in typical.items() if owner != client and math.isfinite(value)]
    return {
        "client": typical[client],
        "others": _median(others) if others else None,
        "rank": 1 + sum(value > typical[client] for value in others),
        "of": len(typical),
        "course": [values[client][number] for number in sorted(values[client])],
    }


def _median(values: list[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return statistics.median(known) if known else math.nan


def _table(measures: list[dict[str, Any]]) -> list[Line]:
    if not measures:
        return [Line("no update of it came in: there are no numbers to compare")]
    head = f"{'median over its rounds':32} {'it':>10} {'others':>10}  {'place':9} round by round"
    lines = [Line(head, "bold")]
    for one in measures:
        place = f"{one['rank']} of {one['of']}"
        course = sparkline(one["course"], _SPARK)
        row = f"{one['measure']:32} {short_text(one['client']):>10} {short_text(one['others']):>10}  {place:9} {course}"
        lines.append(Line(row))
    return lines
