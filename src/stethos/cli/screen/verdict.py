"""A diagnosis for a terminal: the verdict first, then who, since when, how sure, the picture, the SQL, what next.

One finding fits a screen of 80 x 24. Further ones are shorter, and what follows from one stands below it.
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from stethos.cli.screen.spark import sparkline
from stethos.cli.screen.text import clean, cut, names_text, plural_text, short_text
from stethos.diagnose.diagnosis import Diagnosis, NotChecked
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.view.finding import when_text

WIDTH = 80
_WIDEST = 100
_MARGIN = 9
_SQL_LINES = 6
_SHORT_FINDINGS = 3
_LINES_FINDINGS = 8
_FINDING_LINES = 19
_NOTE_LINES = 6  # of what to do about a remark
_REMARKS = 3  # in one line
_HEAT_ROWS = 7
_NAME = 28  # characters for what a curve is called
_SHADES = " ░▒▓█"
_STYLES = {Severity.INFO: "cyan", Severity.WARNING: "bold yellow", Severity.ERROR: "bold red"}
COLOURS = {"red": "bold red", "amber": "bold yellow", "green": "bold green", "grey": "bold"}


class Line(NamedTuple):
    """A line of text, and its style on a terminal that has any."""

    text: str
    style: str = ""


def show_report(diagnosis: Diagnosis, run: str, state: str, target: str) -> None:
    """Print a diagnosis; `target` is how commands are told which run is meant."""
    show_lines(report_lines(diagnosis, run, state, screen_width(), target))


def show_lines(lines: Iterator[Line] | Sequence[Line]) -> None:
    """Print lines: with their styles on a terminal, plain elsewhere."""
    if not sys.stdout.isatty():
        for line in lines:
            print(line.text.rstrip())
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text(line.text.rstrip(), style=line.style))


def screen_width() -> int:
    """How wide a report may be: the terminal, within reason."""
    import shutil

    return min(shutil.get_terminal_size((WIDTH, 24)).columns, _WIDEST) if sys.stdout.isatty() else WIDTH


def report_lines(
    diagnosis: Diagnosis, run: str, state: str = "", width: int = WIDTH, target: str | None = None
) -> Iterator[Line]:
    """The whole report."""
    target = run if target is None else target
    yield from _verdict(diagnosis, run, state)
    findings = [one for one in diagnosis.findings if one.is_problem or len(diagnosis.findings) == 1]
    notes = [one for one in diagnosis.findings if one not in findings]
    findings.sort(key=lambda one: not one.is_open)  # what goes on comes first
    for place, one in enumerate(findings):
        if place == 0:
            yield Line("")
            yield from _fitting(one, target, width)
        elif place <= _SHORT_FINDINGS:
            yield Line("")
            yield from _short_lines(one, width)
        elif place <= _LINES_FINDINGS:
            yield from _title_lines(one, width)
    if len(findings) > _LINES_FINDINGS + 1:
        yield Line(f"{'':{_MARGIN}}and {len(findings) - _LINES_FINDINGS - 1} more: {_command(target, '--json')}")
    if notes:
        yield Line("")
    for one in notes:
        yield from _title_lines(one, width) if findings else _note_lines(one, width)
    if diagnosis.not_checked:
        yield Line("")
        yield from _not_checked(diagnosis.not_checked, width)


def _fitting(one: Finding, target: str, width: int) -> list[Line]:
    """One finding with as much as a screen has room for, beside the verdict and what was not checked."""
    for evidences, effects in ((2, 4), (1, 4), (1, 1)):
        lines = list(finding_lines(one, target, width, evidences=evidences, effects=effects))
        if len(lines) <= _FINDING_LINES:
            break
    return lines


def finding_lines(
    one: Finding, target: str, width: int = WIDTH, *, is_client: bool = False, evidences: int = 2, effects: int = 4
) -> Iterator[Line]:
    """One finding in full; `is_client` where what is known of its client is shown beside it."""
    yield from _title(one, width)
    yield from _entry("what", f"{one.name} ({one.code})" + (f", {one.kind}" if one.kind != one.name else ""), width)
    if who := _who(one.subject):
        yield from _entry("who", who, width)
    if when := when_text(one):
        yield from _entry("since" if one.is_open else "when", when.removeprefix("since "), width)
    if one.is_problem:
        yield from _entry("sure", sure_text(one.confidence), width)
    if one.proof is not None:
        yield from _entry("proof", f"{one.proof.verdict.upper()}: {one.proof.words}", width, most=3)
    for place, action in enumerate(one.actions[:2]):
        yield from _entry("done" if place == 0 else "", action.text, width, most=1)
    if len(one.actions) > 2:
        yield from _entry("", f"and {len(one.actions) - 2} more: stethos actions -t {_word(target)}", width)
    for place, evidence in enumerate(one.evidence[:evidences]):
        yield from _entry("seen" if place == 0 else "", evidence.text, width, most=3)
        yield from _picture(one, evidence, width)
    if "heat" in one.detail:
        yield from _heat(one.detail["heat"], width)
    for place, effect in enumerate(one.consequences[:effects]):
        yield from labelled("so" if place == 0 else "", _wrapped(effect.title, width, 2, f" ({effect.code})"))
    if len(one.consequences) > effects:
        yield from _entry("", f"and {len(one.consequences) - effects} more that follow from it", width)
    if sql := next((evidence.sql for evidence in one.evidence if evidence.sql), ""):
        yield from _query(target, sql, width)
    if one.next_step:
        yield from _entry("next", one.next_step, width, most=2 if one.is_problem else _NOTE_LINES)
    if one.subject.clients and not is_client:
        yield from typed("", _command(target, f"--client {_word(one.subject.clients[0])}"), width)
    else:
        yield from typed("", f"stethos diagnose --explain {one.code}", width)


def _query(target: str, sql: str, width: int) -> Iterator[Line]:
    """The command that shows the evidence: whole, or where to find it."""
    lines = list(typed("sql", query_command(target, sql), width))
    yield from lines if len(lines) <= _SQL_LINES else typed("sql", f"{_command(target, '--json')}  # evidence", width)


def typed(label: str, command: str, width: int, margin: int = _MARGIN, style: str = "") -> Iterator[Line]:
    """A command that runs when it is pasted: lines end between words of SQL only, not in a name and not before it."""
    at = command.find("SELECT ") if " query " in command else len(command)
    kept = command[:at].replace(" ", "\0") + re.sub(r"'[^']*'", lambda one: one[0].replace(" ", "\0"), command[at:])
    lines = textwrap.wrap(kept, width - margin, break_on_hyphens=False, break_long_words=False)
    return labelled(label, (line.replace("\0", " ") for line in lines), margin, style)


def query_command(target: str, sql: str) -> str:
    """A command that can be typed: the SQL in double quotes, unless the shell would look into it."""
    sql = clean(sql)
    quoted = shlex.quote(sql) if any(mark in sql for mark in '"$`\\!') else f'"{sql}"'
    return f"stethos query -t {_word(target)} {quoted}"


def event_line(what: str, one: Finding, clock: str) -> Line:
    """A finding of a live run that has opened, changed or is over, in one line."""
    since = f", {when_text(one)}" if when_text(one) else ""
    text = f"{clock}  {what:7}  {one.severity.word.upper():7}  {clean(one.title)} ({one.code}{since})"
    return Line(text, "green" if what == "over" else _STYLES[one.severity])


def brief_text(diagnosis: Diagnosis) -> str:
    """The verdict in one line: how many problems, and the worst of them; where there is none, what was remarked."""
    worst = next((one for one in diagnosis.findings if one.is_problem and one.is_open), None)
    worst = worst or next((one for one in diagnosis.findings if one.is_problem), None)
    title = "" if worst is None else f": {clean(worst.title)} ({sure_text(worst.confidence)} sure, {worst.code})"
    remarks = [] if worst is not None else [clean(one.title) for one in diagnosis.findings]
    return _conclusion_text(diagnosis) + title + (f": {'; '.join(remarks[:_REMARKS])}" if remarks else "")


def _verdict(diagnosis: Diagnosis, run: str, state: str) -> Iterator[Line]:
    is_running = f" ({state})" if state else ""
    head = f"run {cut(clean(run), 40)}{is_running}: "
    yield Line(head + _conclusion_text(diagnosis), COLOURS[diagnosis.conclusion.colour])


def _conclusion_text(diagnosis: Diagnosis) -> str:
    found = diagnosis.conclusion
    by = f" by {plural_text(len(diagnosis.checked), 'detector')}" if found.state == "nothing found" else ""
    infos = f", {found.infos} info" if found.infos else ""
    return f"{found.text}{by}{infos}"


def _title(one: Finding, width: int) -> Iterator[Line]:
    style = _STYLES[one.severity] if one.is_open else "yellow"
    return labelled(severity_text(one), _wrapped(one.title, width, 2), style=style)


def _short_lines(one: Finding, width: int) -> Iterator[Line]:
    yield from _title(one, width)
    facts = [
        f"{one.name} ({one.code})",
        when_text(one),
        f"{sure_text(one.confidence)} sure",
        "" if one.proof is None else one.proof.verdict.upper(),
        *(action.text for action in one.actions[:1]),
    ]
    yield from _entry("", " · ".join(filter(None, facts)), width, most=1)
    if one.consequences:
        yield from _entry("so", "; ".join(effect.title for effect in one.consequences), width, most=1)
    if one.next_step:
        yield from _entry("next", one.next_step, width, most=1)


def _note_lines(one: Finding, width: int) -> Iterator[Line]:
    """A remark, where there is nothing worse to read: with what to do."""
    yield from _title_lines(one, width)
    if one.next_step:
        yield from _entry("next", one.next_step, width, most=_NOTE_LINES)


def _title_lines(one: Finding, width: int) -> Iterator[Line]:
    return labelled(severity_text(one), _wrapped(one.title, width, 2, f" ({one.code})"), style=_STYLES[one.severity])


def _entry(label: str, text: str, width: int, most: int = 2) -> Iterator[Line]:
    return labelled(label, _wrapped(text, width, most))


def labelled(label: str, lines: Iterable[str], margin: int = _MARGIN, style: str = "") -> Iterator[Line]:
    """Lines behind a margin, in which the first has a label."""
    for place, line in enumerate(lines):
        yield Line(f"{label if place == 0 else '':{margin}}{line}", style)


def _wrapped(text: str, width: int, most: int, tail: str = "") -> list[str]:
    """At most so many lines; what is cut is not the tail."""
    room = width - _MARGIN
    lines = textwrap.wrap(clean(text).rstrip() + tail, room, break_on_hyphens=False)
    if len(lines) > most:
        rest = " ".join(lines[most - 1 :]).removesuffix(tail)
        lines = [*lines[: most - 1], cut(rest, room - len(tail)) + tail]
    return lines or [""]


def _who(subject: Subject) -> str:
    parts = []
    if subject.clients:
        parts.append(f"{'client' if len(subject.clients) == 1 else 'clients'} {names_text(subject.clients, 8)}")
    if subject.ranks:
        parts.append(f"rank {', '.join(map(str, subject.ranks[:8]))}")
    if subject.layers:
        parts.append(f"{'layer' if len(subject.layers) == 1 else 'layers'} {names_text(subject.layers, 3)}")
    if subject.process:
        parts.append(f"process {clean(subject.process)}")
    return ", ".join(parts)


def severity_text(one: Finding) -> str:
    """`ERROR`, or `over`."""
    return one.severity.word.upper() if one.is_open else "over"


def sure_text(confidence: float) -> str:
    """`95 %`."""
    return f"{confidence * 100:.0f} %" if confidence < 0.995 else "100 %"


def _picture(one: Finding, evidence: Evidence, width: int) -> Iterator[Line]:
    """The subject's series above that of the others, on one scale. A NaN is a gap beside others, else what to see."""
    if len(evidence.series) < 2:
        return
    names = [cut(clean(name), _NAME) for name in one.series_names(evidence)]
    both = [series for series in (evidence.series, evidence.others) if len(series) > 1]
    indent = max(map(len, names[: len(both)]))
    is_gap = len(both) > 1
    rows = [_averaged(series, width - _MARGIN - indent - 20, is_gap=is_gap) for series in both]
    drawn = sparkline([value for row in rows for value in row], sum(map(len, rows)))
    for name, row, series in zip(names, rows, both, strict=False):
        part, drawn = drawn[: len(row)], drawn[len(row) :]
        ends = [next((value for value in way if value == value or not is_gap), None) for way in (series, series[::-1])]
        yield Line(f"{'':{_MARGIN}}{name:{indent}} {part}  {short_text(ends[0])} → {short_text(ends[1])}")


def _averaged(series: Sequence[float], most: int, *, is_gap: bool) -> list[float | None]:
    """At most so many points: means of neighbours; None where nothing is known, NaN where something is not finite."""
    found: list[float | None] = []
    for part in np.array_split(np.array(series, float), min(most, len(series))):
        known = part[~np.isnan(part)] if is_gap else part
        found.append(None if not len(known) else float(known.mean()) if np.isfinite(known).all() else float("nan"))
    return found


def _heat(heat: dict[str, list[object]], width: int) -> Iterator[Line]:
    """A small map: rows of shaded cells."""
    cells = np.array(heat["cells"], float)
    most = np.nanmax(cells) if cells.size and np.isfinite(cells).any() else 0.0
    names = [cut(clean(str(name)), 10) for name in heat["rows"]]
    columns = min(cells.shape[1], (width - _MARGIN - 12) // 2)
    head = "".join(cut(str(name), 2).ljust(2) for name in heat["columns"][:columns])
    yield Line(f"{'':{_MARGIN}}{'':10} {head}")
    for name, row in zip(names[:_HEAT_ROWS], cells, strict=False):
        shades = [0 if not value > 0 else 1 + min(3, int(4 * value / most)) for value in row[:columns].tolist()]
        yield Line(f"{'':{_MARGIN}}{name:10} {''.join(_SHADES[shade] * 2 for shade in shades)}")
    if len(names) > _HEAT_ROWS:
        yield Line(f"{'':{_MARGIN}}and {len(names) - _HEAT_ROWS} more")


def _not_checked(missing: Sequence[NotChecked], width: int) -> Iterator[Line]:
    by_reason: dict[str, list[str]] = {}
    for one in missing:
        by_reason.setdefault(one.reason, []).append(one.name)
    parts = [f"{names_text(names, 2)} ({reason})" for reason, names in by_reason.items()]
    text = f"not checked: {'; '.join(parts)}"
    lines = textwrap.wrap(clean(text), width, break_on_hyphens=False, subsequent_indent="  ")
    shown = [*lines[:3], f"  ... {len(missing)} in all: stethos diagnose --json"] if len(lines) > 4 else lines
    yield from (Line(line, "dim") for line in shown)


def _command(target: str, rest: str) -> str:
    return f"stethos diagnose -t {_word(target)} {rest}"


def _word(text: str) -> str:
    return shlex.quote(clean(text))
