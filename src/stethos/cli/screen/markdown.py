"""A run's story as Markdown, short enough to be pasted into an issue.

Names come from the training and can be anything: what Markdown, or the place it is
pasted to, would take for more than text (markup, tables, mentions, links) is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stethos.cli.rounds import chosen_rounds, wrongs_of
from stethos.cli.screen.federated import by_federation
from stethos.cli.screen.spark import sparkline
from stethos.cli.screen.text import (
    clean,
    cosine_text,
    count_text,
    cut,
    duration_text,
    ms_text,
    names_text,
    plural_text,
    share_text,
    short_text,
    time_text,
    times_text,
)
from stethos.cli.screen.verdict import report_lines, severity_text, sure_text
from stethos.diagnose.finding import Finding
from stethos.errors import QueryError
from stethos.view.client import clients_of
from stethos.view.finding import when_text
from stethos.view.machine import ENVIRONMENT, GAPS
from stethos.view.round import rounds_of
from stethos.view.step import by_step

if TYPE_CHECKING:
    from stethos.diagnose.diagnosis import Diagnosis
    from stethos.store.run import Run

_MARKUP = re.compile(r"[\\`*_\[\]|~^{}]")
_NOTHING = "&#8203;"  # has no width; takes the meaning from what stands around it
_SPARK = 48
_FIRST_ROUNDS, _LAST_ROUNDS, _WRONG_ROUNDS = 3, 8, 6
_FINDINGS = 12
_CLIENTS = 10
_TEXT = 400


def markdown_of(run: Run, diagnosis: Diagnosis) -> str:
    """The whole text."""
    summary = run.summary()
    parts = [
        _verdict(run, diagnosis, summary),
        _findings(diagnosis),
        _rounds(run) or _steps(run),
        _clients(run, diagnosis),
        _made(run),
        _missing(run, diagnosis, summary),
    ]
    return "\n\n".join("\n".join(lines) for lines in map(list, parts) if lines) + "\n"


def escape(text: str, most: int = _TEXT) -> str:
    """Text that stays text in Markdown, in one line."""
    text = cut(clean(text), most).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("$", "&#36;")
    text = _MARKUP.sub(r"\\\g<0>", text)
    for mark in ("@", "#", "!"):  # nobody is called, no issue linked, no picture shown
        text = re.sub(rf"(?<!&){mark}", f"{mark}{_NOTHING}", text)
    return text.replace("://", f":{_NOTHING}//").replace("www.", f"www{_NOTHING}.")


def _verdict(run: Run, diagnosis: Diagnosis, summary: dict[str, Any]) -> Iterator[str]:
    verdict = next(report_lines(diagnosis, run.name, summary["state"])).text
    yield f"## {escape(verdict)}"
    count = summary["processes"]
    facts = [
        f"started {time_text(summary['started_ns'])}", duration_text(summary["duration_s"]),
        plural_text(summary["steps"] or 0, "step"), f"{count:,} process{'' if count == 1 else 'es'}",
        f"overhead {share_text(summary['overhead_share'])}",
    ]  # fmt: skip
    yield ""
    yield escape(", ".join(facts))


def _findings(diagnosis: Diagnosis) -> Iterator[str]:
    ordered = sorted(diagnosis.findings, key=lambda one: not one.is_open)
    for place, one in enumerate(ordered[:_FINDINGS]):
        if place:
            yield ""
        yield from _finding(one)
    if len(ordered) > _FINDINGS:
        yield ""
        yield f"and {len(ordered) - _FINDINGS} more"


def _finding(one: Finding) -> Iterator[str]:
    yield f"### {severity_text(one)}: {escape(one.title)}"
    yield ""
    sure = f"{sure_text(one.confidence)} sure" if one.is_problem else ""
    yield escape(", ".join(filter(None, (f"{one.name} ({one.code})", when_text(one), sure))))
    yield ""
    if one.proof is not None:
        yield f"- proof: {one.proof.verdict.upper()}: {escape(one.proof.words)}"
    for action in one.actions[:4]:
        yield f"- done: {escape(action.text)}"
    for evidence in one.evidence[:3]:
        yield f"- seen: {escape(evidence.text)}"
        if len(evidence.series) > 1:
            yield f"  `{sparkline(list(evidence.series), _SPARK)}`"
    for effect in one.consequences[:4]:
        yield f"- so: {escape(effect.title)} ({effect.code})"
    if len(one.consequences) > 4:
        yield f"- and {len(one.consequences) - 4} more that follow from it"
    if one.next_step:
        yield f"- **next: {escape(one.next_step)}**"
    sql = next((evidence.sql for evidence in one.evidence if evidence.sql), "")
    if sql:
        text = clean(sql, keep_lines=True)
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
        yield from ("", f"{fence}sql", text, fence)


def _rounds(run: Run) -> list[str]:
    """The rounds of every federation: curves, then a small table."""
    lines: list[str] = []
    for name, rounds in by_federation(one for one in rounds_of(run) if one.state in ("ended", "repeated")).items():
        lines += [*([""] if lines else []), f"### Rounds of {escape(name, 80)}" if name else "### Rounds", ""]
        loss = "loss" if any(one.loss is not None for one in rounds) else "client_loss"
        for column in (loss, "accuracy"):
            lines += _curve(column.replace("_", " "), [getattr(one, column) for one in rounds])
        heads = "round", "clients", "loss", "accuracy", "duration", "last client", "what went wrong"
        lines += [f"| {' | '.join(heads)} |", "|--:|--:|--:|--:|--:|---|---|"]
        chosen = chosen_rounds(rounds, _FIRST_ROUNDS, _LAST_ROUNDS, _WRONG_ROUNDS)
        for place, index in enumerate(chosen):
            if place and index != chosen[place - 1] + 1:
                lines.append(f"| ⋮ |{' |' * (len(heads) - 1)}")
            one = rounds[index]
            cells = (
                str(one.round), "-" if one.selected is None else f"{one.ok or 0:,}/{one.selected:,}",
                short_text(getattr(one, loss)), short_text(one.accuracy), ms_text(one.duration_ms),
                escape(one.critical or "-", 40), escape("; ".join(wrongs_of(one)), 160),
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _steps(run: Run) -> list[str]:
    """The curve of a training that has no rounds."""
    try:
        columns = by_step("loss").ask(run)
    except QueryError:
        return []
    series = columns.column("series")
    lines: list[str] = []
    for name in list(dict.fromkeys(series))[:4]:
        values = [value for value, one in zip(columns.column("loss"), series, strict=True) if one == name]
        lines += _curve(f"loss of {name}", values)
    return ["### Steps", "", *lines] if lines else []


def _curve(name: str, values: Sequence[float | None]) -> list[str]:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return []
    return [f"{escape(name, 60)} `{sparkline(values, _SPARK)}` {short_text(known[0])} → {short_text(known[-1])}", ""]


def _clients(run: Run, diagnosis: Diagnosis) -> list[str]:
    """Clients that findings name."""
    marked = [(one, one.mark) for one in clients_of(run, findings=diagnosis.findings) if one.mark is not None]
    if not marked:
        return []
    lines = [
        "### Clients that findings name", "",
        "| client | found | ok | norm | cosine | entry loss | last loss | duration |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for one, mark in marked[:_CLIENTS]:
        cells = (
            escape(one.client, 60), escape(mark.text, 120), f"{one.ok:,}/{one.turns:,}", times_text(one.norm_ratio),
            cosine_text(one.cosine), short_text(one.entry_loss), short_text(one.loss), ms_text(one.duration_ms),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    if len(marked) > _CLIENTS:
        lines += ["", f"and {len(marked) - _CLIENTS} more"]
    words = "Medians over all rounds, but for the last loss reported; norm and cosine relative to the other clients."
    return [*lines, "", words]


def _made(run: Run) -> list[str]:
    rows = ENVIRONMENT.records(run)
    if not rows:
        return []
    return ["### Environment", "", *(f"- {row['setting']}: {escape(row['value'])}" for row in rows[:20])]


def _missing(run: Run, diagnosis: Diagnosis, summary: dict[str, Any]) -> list[str]:
    """What was not recorded, and what could not be checked."""
    lost = {"dropped": summary["rows_dropped"], "lost": summary["rows_lost"]}
    lines = [f"- {count_text(count)} rows {what}; see `stethos doctor`" for what, count in lost.items() if count]
    for row in GAPS.records(run)[:10]:
        what, reason = row["what"] or "-", row["reason"] or "no reason told"  # which a client's site may withhold
        lines.append(f"- {escape(what)}: {escape(reason)}, {plural_text(row['times'], 'time')}")
    if diagnosis.not_checked:
        names = names_text([one.name for one in diagnosis.not_checked], 6)
        lines.append(f"- {plural_text(len(diagnosis.not_checked), 'check')} not possible: {escape(names)}")
    return ["### What could not be checked", "", *lines] if lines else []
