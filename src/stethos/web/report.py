"""What a report carries: the panels of a run with their numbers, chosen and thinned to fit into one file.

First every panel as it opens, then what the reader may choose: other statistics,
clients beside the others, rounds, layers; those that findings name first. What
has no room, or takes too long, is left out, and the report says so.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product, zip_longest
from typing import TYPE_CHECKING, Any

from stethos import __version__
from stethos.errors import QueryError, UsageError
from stethos.view.layer import STATISTICS
from stethos.web.encode import encode
from stethos.web.panel import Panel, evaluate
from stethos.web.panels import PAGES, PANELS

if TYPE_CHECKING:
    from stethos.store.rows import Rows
    from stethos.store.run import Run

Given = dict[str, str]
Choice = tuple[Panel, Given]
_ESCAPES = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"}
_METRICS_BYTES = 120_000
_FIRST_SHARE = 0.7  # of the room, for panels as they open
_CHOICES_S = 20.0
_CHOICE_SHARE = 1 / 16  # of the room left for choices, for one of them,
_CHOICE_BYTES = 20_000  # but not less
_MOST_CHOICES = 60  # clients, rounds, layers to choose from
_DIGITS = 7
_MOST_FINDINGS = 200
_MOST_POINTS = 200  # of a curve beside a finding
_NOTES_BYTES = 3_000
_PAGES = {**PAGES, "live": "Processes and logs"}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything about a run that goes into one file; `data` is JSON that can stand in a page."""

    run: str
    data: str
    panels: int
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Bag:
    """Panels packed so far, each as JSON, and how much room is left."""

    room_bytes: int
    parts: list[str] = field(default_factory=list)
    thinned: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def put(self, part: str) -> bool:
        """Whether there was room."""
        size = len(part.encode()) + 1
        if size > self.room_bytes:
            return False
        self.parts.append(part)
        self.room_bytes -= size
        return True


def gather(
    run: Run, diagnosis: dict[str, Any], *, room_bytes: int, advance: Callable[[float], None] | None = None,
    text: str = "", chosen: Sequence[str] = (),
) -> Report:  # fmt: skip
    """The report of a run as it is now, at most `room_bytes` large; `diagnosis` is one as it is given as JSON.

    `text` stands below the verdict, in the words of whoever composed it. With `chosen` the report has these panels
    and the summary alone, on one page, in that order.
    """
    made_ns = time.time_ns()
    is_live = run.is_live
    shown = {"checked": [], "not_checked": [], "is_diagnosed": True, "is_under_way": False, "error": "", **diagnosis}
    shown["findings"] = [_slim(finding) for finding in diagnosis["findings"][:_MOST_FINDINGS]]
    frame = {
        "catalogue": {
            "version": __version__, "directory": "", "pages": _composed_pages(chosen), "tables": [],
            "panels": [panel.as_dict() for panel in _composed(chosen)],
        },
        "run": run.name, "made_ns": str(made_ns), "text": text, "findings": _rounded(shown),
    }  # fmt: skip
    head = _text(frame)
    bag = _Bag(room_bytes - len(head.encode()) - _NOTES_BYTES)
    if bag.room_bytes < 0:
        raise UsageError("the findings alone do not fit", hint=f"add {-bag.room_bytes:,} to --limit-bytes")
    _pack_first(run, bag, advance or (lambda _: None), _composed(chosen))
    left_out = [] if chosen else _pack_choices(run, bag, diagnosis)
    if len(diagnosis["findings"]) > _MOST_FINDINGS:
        left_out.insert(0, f"{_MOST_FINDINGS} of {len(diagnosis['findings']):,} findings")
    notes = tuple(_notes(bag, left_out, is_live=is_live))
    data = f'{head[:-1]},"notes":{_text(notes)},"panels":[{",".join(bag.parts)}]}}'
    return Report(run.name, data, len(bag.parts), notes)


def _composed(chosen: Sequence[str]) -> list[Panel]:
    """The panels of a report: all, or those that were chosen, on its first page; UsageError if there is no such one."""
    if not chosen:
        return list(PANELS.values())
    for name in chosen:
        if name not in PANELS or PANELS[name].chart in ("media",):
            shown = [name for name, panel in PANELS.items() if panel.chart != "media" and panel.page]
            raise UsageError(f"no panel {name!r}", hint=f"panels: {', '.join(shown)}")
    return [replace(PANELS[name], page="overview") for name in dict.fromkeys(("summary", *chosen))]


def _composed_pages(chosen: Sequence[str]) -> dict[str, str]:
    return {"overview": "Report", "findings": _PAGES["findings"]} if chosen else _PAGES


def _pack_first(run: Run, bag: _Bag, advance: Callable[[float], None], panels: Sequence[Panel]) -> None:
    """Every panel as it opens; the largest ones are thinned where they do not fit together."""
    found: list[tuple[int, Panel, Rows]] = []
    for panel in panels:
        if panel.chart not in ("findings", "media") and (not _is_about_one_client(panel) or _is_about_all(panel)):
            try:
                columns = _rounded_rows(evaluate(run, panel))
            except QueryError as error:
                bag.failed.append(f"{panel.title}: {error.message}")
                continue
            if panel.chart == "metrics":
                columns = thin(panel, columns, _METRICS_BYTES)
            found.append((_size(_part(panel, {}, columns)), panel, columns))
        advance(1)
    room = int(bag.room_bytes * _FIRST_SHARE)
    found.sort(key=lambda one: one[0])  # what the small ones leave is for the large ones
    parts: dict[str, str] = {}
    for place, (size, panel, columns) in enumerate(found):
        most = room // (len(found) - place)
        if size > most:
            bag.thinned.append(panel.title)
            columns = thin(panel, columns, most)
        parts[panel.name] = _part(panel, {}, columns)
        room -= _size(parts[panel.name])
    for name in PANELS:
        if name in parts and not bag.put(parts[name]):
            bag.failed.append(f"{PANELS[name].title}: no room")


def _pack_choices(run: Run, bag: _Bag, diagnosis: dict[str, Any]) -> list[str]:
    """What can be chosen in the report, the most telling first; in words what was left out."""
    deadline_s = time.monotonic() + _CHOICES_S
    most_bytes = max(_CHOICE_BYTES, int(bag.room_bytes * _CHOICE_SHARE))
    wanted, taken, is_full = Counter[str](), Counter[str](), set[str]()
    for title, choices in _choices(run, list(_flat(diagnosis["findings"]))):
        wanted[title] += 1
        if title in is_full or taken[title] == _MOST_CHOICES or time.monotonic() > deadline_s:
            continue
        if _pack_choice(run, bag, choices, most_bytes):
            taken[title] += 1
        else:
            is_full.add(title)
    return [f"{taken[title]:,} of {count:,} {title}" for title, count in wanted.items() if taken[title] < count]


def _choices(run: Run, findings: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[Choice]]]:
    """Whom findings name, then other statistics of what is shown, then the others in turn."""
    named_clients = [client for one in findings for client in one["clients"]]
    named_layers = [layer for one in findings for layer in one["layers"]]
    named_rounds = [one["first"] for one in findings if one["unit"] == "round"]
    clients = _Candidates("clients", _client, named_clients, _column(run, "client-table", "client"))
    layers = _Candidates("layers", _layer, named_layers, _values(run, "layer-series", "layer"))
    rounds = _Candidates("rounds", _round, named_rounds, _values(run, "waterfall", "round"))
    yield from clients.named
    for option in _other_options():
        yield "other statistics", [option]
    yield from (*layers.named, *rounds.named)
    for turn in zip_longest(clients.others, layers.others, rounds.others):
        yield from (one for one in turn if one is not None)


class _Candidates:
    """Clients, layers or rounds that can be chosen: those that findings name, and the others."""

    def __init__(
        self, title: str, choices: Callable[[str], list[Choice]], named: Sequence[Any], known: Sequence[str]
    ) -> None:
        first = [one for one in dict.fromkeys(map(str, named)) if one in known]
        self.named = [(title, choices(one)) for one in first]
        self.others = [(title, choices(one)) for one in dict.fromkeys(known) if one not in first]


def _pack_choice(run: Run, bag: _Bag, choices: Sequence[Choice], most_bytes: int) -> bool:
    """All of these panels or none; a large one is thinned."""
    parts = []
    for panel, given in choices:
        try:
            columns = thin(panel, _rounded_rows(evaluate(run, panel, **given)), most_bytes)
        except QueryError:
            return False
        parts.append(_part(panel, given, columns))
    return sum(map(_size, parts)) <= bag.room_bytes and all(map(bag.put, parts))


def _other_options() -> Iterator[Choice]:
    """Every panel with every choice that is not the one it opens with."""
    for panel in PANELS.values():
        choices = [one for one in panel.parameters if one.kind == "choice" and panel.chart != "metrics"]
        for chosen in list(product(*(parameter.options for parameter in choices)))[1:]:
            yield panel, {parameter.name: key for parameter, key in zip(choices, chosen, strict=True)}


def _client(client: str) -> list[Choice]:
    return [(panel, {"client": client}) for panel in PANELS.values() if _is_about_one_client(panel)]


def _round(number: str) -> list[Choice]:
    return [(PANELS["waterfall"], {"round": number})]


def _layer(layer: str) -> list[Choice]:
    return [
        (PANELS["update-ratio"], {"layer": layer}),
        *((PANELS["layer-series"], {"layer": layer, "statistic": statistic}) for statistic in STATISTICS),
    ]


def _is_about_one_client(panel: Panel) -> bool:
    return any(parameter.name == "client" for parameter in panel.parameters)


def _is_about_all(panel: Panel) -> bool:
    """Whether a panel about a client answers for all together if none is chosen."""
    return "$client IS NULL" in panel.query.sql


def thin(panel: Panel, columns: Rows, most_bytes: int) -> Rows:
    """So few rows that the panel is at most `most_bytes` large: every n-th point of a curve, the top of a table."""
    size = _size(_part(panel, {}, columns))
    every = 1
    while size > most_bytes and columns.values:
        every = max(every + 1, math.ceil(size / max(1, most_bytes)))
        columns = _fewer(panel, columns, every)
        size = _size(_part(panel, {}, columns))
    return columns


def _fewer(panel: Panel, columns: Rows, every: int) -> Rows:
    rows: Sequence[int] = range(len(columns.values) // every)
    if panel.chart in ("line", "stack", "heat", "metrics") and panel.x in columns.columns:
        places = columns.column(panel.x)
        points = sorted({place for place in places if place is not None})
        if len(points) >= 2 * every:
            kept = set(points[::every])
            rows = [row for row, place in enumerate(places) if place in kept]
    return replace(columns, values=[columns.values[row] for row in rows], is_cut=True)


def _notes(bag: _Bag, left_out: Sequence[str], *, is_live: bool) -> Iterator[str]:
    if is_live:
        yield "The run was still going on."
    if bag.thinned:
        yield f"Thinned to keep the file small: {', '.join(bag.thinned)}."
    if left_out:
        yield f"Not all that there is can be seen here: {'; '.join(left_out)}. `stethos serve` shows the rest."
    for failure in bag.failed[:5]:
        yield f"Left out: {failure[:200]}."


def _part(panel: Panel, given: Given, columns: Rows) -> str:
    return _text({"panel": panel.name, "given": given, "columns": columns.as_dict()})


def _text(content: Any) -> str:
    """JSON without anything that could end or begin markup."""
    return encode(content).decode().translate(_ESCAPES)


def _size(part: str) -> int:
    return len(part.encode()) + 1


def _rounded_rows(columns: Rows) -> Rows:
    return replace(columns, values=[tuple(_rounded(row)) for row in columns.values])


def _rounded(value: Any) -> Any:
    """Numbers with as many digits as can be told apart on a screen."""
    match value:
        case float() if math.isfinite(value):
            return float(f"{value:.{_DIGITS}g}")
        case list() | tuple():
            return [_rounded(one) for one in value]
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
    return value


def _slim(finding: dict[str, Any]) -> dict[str, Any]:
    """A finding with what the page shows of it, its curves thinned."""
    shown = {name: value for name, value in finding.items() if name != "detail"}
    shown["evidence"] = [
        {**one, **{name: one[name][:: math.ceil(len(one[name]) / _MOST_POINTS) or 1] for name in ("series", "others")}}
        for one in finding["evidence"]
    ]
    shown["consequences"] = [_slim(one) for one in finding["consequences"]]
    return shown


def _flat(findings: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for finding in findings:
        yield finding
        yield from _flat(finding["consequences"])


def _values(run: Run, panel: str, parameter: str) -> list[str]:
    sql = next(one.values for one in PANELS[panel].parameters if one.name == parameter)
    try:
        return [str(value) for value, *_ in run.rows(sql, limit_rows=5_000, timeout_s=10.0).values if value is not None]
    except QueryError:
        return []


def _column(run: Run, panel: str, column: str) -> list[str]:
    try:
        return [str(value) for value in evaluate(run, PANELS[panel]).column(column)]
    except QueryError:
        return []
