"""Panels and views of the user's own: SQL with a drawing, and addresses with a name, in TOML files.

    [[panel]]
    title = "Loss by client"
    sql = "SELECT round, client, loss FROM client_rounds"
    chart = "line"
    x = "round"
    y = "loss"
    by = "client"

    [[view]]
    name = "Smoothed losses"
    address = "#/run/hidden-1/metrics?like=loss&smooth=0.6"

They stand in the `stethos.toml` that is nearest to where the server was started, which is only read, and in
`panels.toml` in the directory of runs, which the page saves to. An entry that is wrong is an error
of its own: the others are shown.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from stethos.errors import UsageError
from stethos.record.border import read_file
from stethos.record.whole_file import whole_file
from stethos.toml_text import toml_in
from stethos.web.panel import OwnChart

FILE = "panels.toml"
_LARGEST = 1 << 20
_MOST = 200
_LONGEST = {"sql": 20_000, "note": 2_000, "address": 4_000}
_LONGEST_NAME = 200
_PANEL_FIELDS = ("title", "sql", "chart", "x", "y", "by", "note", "view")
_VIEW_FIELDS = ("name", "address")
_saving = threading.Lock()
_One = TypeVar("_One")


@dataclass(frozen=True, slots=True)
class OwnPanel:
    """A query and how to draw its result; `view` is the heading under which it stands."""

    title: str
    sql: str
    chart: OwnChart = "table"
    x: str = ""
    y: str = ""
    by: str = ""
    note: str = ""
    view: str = ""


@dataclass(frozen=True, slots=True)
class OwnView:
    """A page as it was set up, by a name."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class OwnFile:
    """What one file has, and what is wrong with it."""

    path: Path
    panels: tuple[OwnPanel, ...] = ()
    views: tuple[OwnView, ...] = ()
    errors: tuple[str, ...] = ()

    def as_dict(self, *, is_ours: bool) -> dict[str, Any]:
        panels = [{**asdict(one), "is_saved_here": is_ours} for one in self.panels]
        views = [{**asdict(one), "is_saved_here": is_ours} for one in self.views]
        errors = [f"{self.path.name}: {text}" for text in self.errors]
        return {"panels": panels, "views": views, "errors": errors}


def read_own(path: Path) -> OwnFile:
    """The panels and views of a file; without one there are none."""
    try:
        content = toml_in(read_file(path, _LARGEST).decode())
    except FileNotFoundError:
        return OwnFile(path)
    except (OSError, ValueError) as error:
        return OwnFile(path, errors=(f"cannot be read: {error}"[:300],))
    errors: list[str] = []
    panels = _entries(content.get("panel", []), "panel", panel_of, errors)
    views = _entries(content.get("view", []), "view", view_of, errors)
    return OwnFile(path, tuple(panels), tuple(views), tuple(errors))


def panel_of(entry: Mapping[str, Any]) -> OwnPanel:
    """The panel that an entry describes; UsageError if it does not."""
    told = _texts(entry, _PANEL_FIELDS, ("title", "sql"))
    charts = get_args(OwnChart)
    if told.get("chart", "table") not in charts:
        raise UsageError(f"chart is {told['chart']!r}", hint=f"charts: {', '.join(charts)}")
    return OwnPanel(**told)  # type: ignore[arg-type]


def view_of(entry: Mapping[str, Any]) -> OwnView:
    """The view that an entry describes; UsageError if it does not, or leads out of the page."""
    told = _texts(entry, _VIEW_FIELDS, _VIEW_FIELDS)
    if not told["address"].startswith("#/"):
        raise UsageError(f"the address {told['address'][:60]!r} is none of the page", hint='it begins with "#/"')
    return OwnView(**told)


class OwnPanels:
    """The user's file and the one beside the runs, read as they are now."""

    def __init__(self, directory: Path, user_file: Path | None) -> None:
        self._saved = directory / FILE
        self._user_file = user_file if user_file is not None and user_file != self._saved else None

    def as_dict(self) -> dict[str, Any]:
        """Everything there is, the user's first."""
        saved = read_own(self._saved)
        parts = [] if self._user_file is None else [read_own(self._user_file).as_dict(is_ours=False)]
        parts.append(saved.as_dict(is_ours=True))
        return {name: [one for part in parts for one in part[name]] for name in ("panels", "views", "errors")}

    def change(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Save a `panel` or a `view` in place of the one with its name, or `remove` it; UsageError if that cannot be.

        Two tabs that save different names both keep theirs: the file is read anew before it is written.
        """
        with _saving:
            known = read_own(self._saved)
            if known.errors:
                raise UsageError(f"{self._saved.name} has an error: {known.errors[0]}", hint="fix it with an editor")
            panels, views = list(known.panels), list(known.views)
            removed = request.get("remove")
            if isinstance(request.get("panel"), Mapping):
                panel = panel_of(request["panel"])
                panels = [*(one for one in panels if one.title != panel.title), panel]
            elif isinstance(request.get("view"), Mapping):
                view = view_of(request["view"])
                views = [*(one for one in views if one.name != view.name), view]
            elif isinstance(removed, str):
                panels = [one for one in panels if one.title != removed]
                views = [one for one in views if one.name != removed]
            else:
                raise UsageError("nothing to save", hint='send {"panel": {…}}, {"view": {…}} or {"remove": "TITLE"}')
            if len(panels) > _MOST or len(views) > _MOST:
                raise UsageError(f"more than {_MOST} panels or views", hint="remove some first")
            try:
                with whole_file(self._saved) as file:
                    file.write(toml_of(panels, views).encode())
            except OSError as error:
                raise UsageError(f"cannot write {self._saved}: {error.strerror}") from None
        return self.as_dict()


def toml_of(panels: Sequence[OwnPanel], views: Sequence[OwnView]) -> str:
    """As `read_own` reads it; what is empty is left out."""
    parts = [_table("panel", asdict(one)) for one in panels] + [_table("view", asdict(one)) for one in views]
    return "\n".join(parts)


def _table(name: str, fields: Mapping[str, str]) -> str:
    return "".join([f"[[{name}]]\n", *(f"{key} = {_quoted(value)}\n" for key, value in fields.items() if value)])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _entries(told: Any, name: str, read: Callable[[Mapping[str, Any]], _One], errors: list[str]) -> list[_One]:
    if not isinstance(told, list):
        errors.append(f"`{name}` is not a list of tables; write [[{name}]]")
        return []
    found = []
    for number, entry in enumerate(told[:_MOST], 1):
        try:
            if not isinstance(entry, Mapping):
                raise UsageError("it is not a table", hint=f"write [[{name}]]")
            found.append(read(entry))
        except UsageError as error:
            errors.append(f"{name} {number}: {error.message}; {error.hint}")
    if len(told) > _MOST:
        errors.append(f"only the first {_MOST} of {len(told)} entries of `{name}` are read")
    return found


def _texts(entry: Mapping[str, Any], names: Sequence[str], needed: Sequence[str]) -> dict[str, str]:
    unknown = sorted(set(map(str, entry)) - set(names))
    if unknown:
        raise UsageError(f"no such field: {unknown[0][:60]!r}", hint=f"fields: {', '.join(names)}")
    for name, value in entry.items():
        if not isinstance(value, str) or len(value) > _LONGEST.get(name, _LONGEST_NAME):
            raise UsageError(f"{name} is not a text, or too long", hint=f"at most {_LONGEST.get(name, _LONGEST_NAME)}")
    missing = [name for name in needed if not entry.get(name, "").strip()]
    if missing:
        raise UsageError(f"{missing[0]} is missing", hint=f"needed: {', '.join(needed)}")
    return dict(entry)
