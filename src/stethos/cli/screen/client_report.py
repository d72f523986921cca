"""What is known about one client: its findings, and its numbers against the other clients'.

Where it takes part in several federations of a run, each by itself: they have nothing in common but its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.spark import sparkline
from stethos.cli.screen.text import bytes_text, clean, cut, ms_text, plural_text, short_text
from stethos.cli.screen.verdict import Line, finding_lines, screen_width, show_lines
from stethos.errors import UsageError
from stethos.nearest import did_you_mean
from stethos.store.order import natural_key
from stethos.view.client import STATUSES, AgainstOthers, against_others

if TYPE_CHECKING:
    from stethos.diagnose.diagnosis import Diagnosis
    from stethos.diagnose.finding import Finding
    from stethos.store.run import Run

_SPARK = 24


def show_client(diagnosis: Diagnosis, run: Run, client: str, target: str, *, as_json: bool) -> int:
    """Print what is known; the exit status is 1 if something is wrong with this client."""
    turns = _turns(run, client)
    found = findings_about(diagnosis, client)
    measures = against_others(run, client)
    status = int(any(one.is_open and one.severity.word != "info" for one in found))
    if as_json:
        words = dict.fromkeys(word for counts in turns.values() for word in counts)
        print_json(
            {
                "client": client,
                "turns": {word: sum(each.get(word, 0) for each in turns.values()) for word in words},
                "federations": {name or "": counts for name, counts in turns.items()},
                "measures": [one.as_dict() for one in measures],
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
        show_lines([Line(""), *_table([one for one in measures if one.federation == federation])])
    return status


def findings_about(diagnosis: Diagnosis, client: str) -> list[Finding]:
    """Findings that name the client, also among those that follow from another."""
    every = [effect for one in diagnosis.findings for effect in (one, *one.consequences)]
    return [one for one in every if client in one.subject.clients]


def _turns(run: Run, client: str) -> dict[str | None, dict[str, int]]:
    """How often the client's turn ended how, by federation; UsageError if the run does not know it."""
    rows = STATUSES.ask(run).values
    names = sorted({str(row[1]) for row in rows if row[1] is not None}, key=natural_key)
    if not names:
        raise UsageError(
            f"run {run.name} has no clients", hint="it is not a federated training; see `stethos diagnose`"
        )
    if client not in names:
        hint = did_you_mean(client, names, otherwise=f"clients: {', '.join(names[:10])}")
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


def _table(measures: Sequence[AgainstOthers]) -> list[Line]:
    if not measures:
        return [Line("it sent no update, so there is nothing to compare")]
    lines = [Line(f"{'median over its rounds':45} {'it':>10} {'others':>10}  {'place':9} round by round", "bold")]
    for one in measures:
        its, others = (_text(value, one.unit) for value in (one.client, one.others))
        place = f"{one.rank} of {one.of}"
        lines.append(Line(f"{one.measure:45} {its:>10} {others:>10}  {place:9} {sparkline(one.course, _SPARK)}"))
    return lines


def _text(value: float | None, unit: str) -> str:
    if unit == "ms":
        return ms_text(value)
    return short_text(value) if unit != "bytes" or value is None else bytes_text(int(value))
