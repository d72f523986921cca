"""What may follow on a command line that is being typed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from stethos.errors import StethosError
from stethos.settings import Preset

if TYPE_CHECKING:
    from stethos.cli.main import Parser
    from stethos.record.place import RunPlace

_MOST = 200
_LAST_NAME = re.compile(r"[A-Za-z_][\w.]*$")
_HARMLESS = re.compile(r"[\w./@][\w./@%+=:,-]*")  # a shell puts words into its line as they are, and would run `$(...)`


def completions(words: list[str]) -> list[str]:
    """Words that may stand in place of the last of `words`, which is begun or empty."""
    from stethos.cli.main import ALIASES, COMMANDS, GROUPS

    *before, begun = words or [""]
    target, before = _without_target(before, begun)
    if before[-1:] in (["-t"], ["--target"]):
        return _beginning(begun, _runs(None))
    group = before.pop(0) if before and before[0] in GROUPS and before[0] else None
    if not before:
        names = [*GROUPS[group], *ALIASES] if group else [*COMMANDS, *filter(None, GROUPS), "help"]
        return _beginning(begun, names)
    name = ALIASES.get(before[0], before[0])
    if name not in COMMANDS:
        return _beginning(begun, COMMANDS) if name in ("help", *_runs(None)) else []
    return _of_command(name, target, before[1:], begun)


def _without_target(words: list[str], begun: str) -> tuple[str | None, list[str]]:
    """The target that stands somewhere before, and the words up to it where its name is what is missing."""
    for place, word in enumerate(words):
        if word in ("-t", "--target") and place + 1 < len(words):
            return words[place + 1], [*words[:place], *words[place + 2 :]]
    return None, words


def _of_command(name: str, target: str | None, words: list[str], begun: str) -> list[str]:
    from stethos.cli.main import COMMANDS, parser_of

    parser = parser_of(name, import_module(COMMANDS[name]))
    directory = _value_of("--dir", words)
    last = parser._option_string_actions.get(words[-1]) if words else None
    if last is not None and last.nargs != 0:
        return _beginning(begun, _values(last, target, directory))
    if begun.startswith("-"):
        return _beginning(begun, _options(parser))
    if name == "query":
        return _in_sql(begun)
    if name == "tables":
        from stethos.schema import TABLES

        return _beginning(begun, [table.qualified_name for table in TABLES.values()])
    positional = next((action for action in parser._actions if not action.option_strings and action.choices), None)
    if positional is not None and positional.choices is not None:
        return _beginning(begun, map(str, positional.choices))
    takes_run = any(action.dest in ("target", "runs") for action in parser._actions)
    return _beginning(begun, _runs(directory)) if takes_run else []


def _options(parser: Parser) -> Iterator[str]:
    for action in parser._actions:
        if action.help != argparse.SUPPRESS:
            yield from action.option_strings


def _values(action: argparse.Action, target: str | None, directory: str | None) -> Iterable[str]:
    """What an option may be given."""
    if action.choices is not None:
        return map(str, action.choices)
    named: dict[str, Callable[[], Iterable[str]]] = {
        "target": lambda: _runs(directory),
        "client": lambda: _clients(target, directory),
        "clients": lambda: _clients(target, directory),
        "silence": _detectors,
        "only": _detectors,
        "explain": _detectors,
        "set": lambda: (f"{name}." for name in _detectors()),
        "preset": lambda: get_args(Preset),
    }
    return named.get(action.dest, list)()


def _in_sql(begun: str) -> list[str]:
    """The SQL with its last name completed to a table or a column."""
    from stethos.schema import TABLES

    text = begun.lstrip("\"'")
    found = _LAST_NAME.search(text)
    if found is None:
        return []
    names = {column.name for table in TABLES.values() for column in table.all_columns}
    names |= {table.qualified_name for table in TABLES.values()}
    return [text[: found.start()] + name for name in _beginning(found.group(), sorted(names))]


def _runs(directory: str | None) -> list[str]:
    return _harmless(place.name for place in _places(directory))


def _places(directory: str | None) -> list[RunPlace]:
    from stethos.settings import default_runs_dir
    from stethos.store.find import list_runs

    with suppress(OSError, StethosError):
        return list_runs(Path(directory) if directory else default_runs_dir())
    return []


def _clients(target: str | None, directory: str | None) -> list[str]:
    from stethos.store.find import find_run
    from stethos.store.run import Run
    from stethos.view.client import STATUSES

    with suppress(StethosError, OSError), Run(find_run(target, Path(directory) if directory else None)) as run:
        return sorted(_harmless({str(name) for name in run.sql(STATUSES()).column("client").to_pylist()}))
    return []


def _harmless(names: Iterable[str]) -> list[str]:
    """Those of names, which anybody may have given, that are one plain word in every shell."""
    return list(filter(_HARMLESS.fullmatch, names))


def _detectors() -> list[str]:
    from stethos.diagnose.detectors import DETECTORS

    return [name for detector in DETECTORS.values() for name in (detector.name, detector.code)]


def _value_of(option: str, words: list[str]) -> str | None:
    return next((words[place + 1] for place, word in enumerate(words[:-1]) if word == option), None)


def _beginning(begun: str, words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(word for word in words if word.startswith(begun)))[:_MOST]
