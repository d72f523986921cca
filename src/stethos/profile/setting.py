"""What a run was started with, and in what runs differ."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stethos.profile.column import records

if TYPE_CHECKING:
    from stethos.store.run import Run

_RUN_SQL = "SELECT command, host, git_commit, version FROM runs"
_PROCESS_SQL = """\
SELECT command, python, torch, versions, config, preset, overhead_budget, world_size, host
FROM processes ORDER BY rank NULLS FIRST, started_ns"""
_VERSION = "version of "
_OWN_WORDS = ("--name", "--dir", "--run")  # name the run; no setting of the training


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that is not the same in all runs; None where a run does not have it."""

    name: str
    values: tuple[Any, ...]

    @property
    def is_seed(self) -> bool:
        last = self.name.replace("_", ".").replace("-", ".").lower().split(".")
        return "seed" in last

    @property
    def is_place(self) -> bool:
        """Where it ran, which changes times but no numbers."""
        return self.name in ("host", "machine")

    @property
    def words(self) -> str:
        """The setting and its values; a flag has none, it is there or not."""
        if all(value in (None, "") for value in self.values):
            shown = ["not given" if value is None else "given" for value in self.values]
        else:
            shown = ["-" if value is None else _shown(value) for value in self.values]
        return f"{self.name}: {' -> '.join(dict.fromkeys(shown))}"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_settings(run: Run) -> dict[str, Any]:
    """The settings of a run by dotted name: configuration, options of the command, versions, commit."""
    about = records(run, _RUN_SQL)[0]
    processes = records(run, _PROCESS_SQL)
    found: dict[str, Any] = {"git commit": about["git_commit"], "stethos": about["version"], "host": about["host"]}
    first = processes[0] if processes else {}
    config = next((row["config"] for row in processes if row["config"] not in (None, "", "{}")), None)
    for name in ("python", "torch", "preset", "world_size"):
        found[name.replace("_", " ")] = first.get(name)
    found.update(_flat("", _parsed(config)))
    found.update({f"{_VERSION}{name}": value for name, value in _parsed(first.get("versions")).items()})
    options = _options(first.get("command") or about["command"] or "")
    found.update({name: value for name, value in options.items() if not _is_known(found, name, value)})
    return {name: value for name, value in found.items() if value is not None}


def differences_of(settings: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Settings in which the runs differ, those of the training before those of the machine."""
    names = dict.fromkeys(name for one in settings for name in one)
    found = [Difference(name, tuple(one.get(name) for one in settings)) for name in names]
    return [one for one in found if len({json.dumps(value, default=str) for value in one.values}) > 1 and _counts(one)]


def _counts(one: Difference) -> bool:
    """A package that only some of the runs had loaded when they were asked is no setting."""
    return not one.name.startswith(_VERSION) or None not in one.values


def _parsed(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _flat(prefix: str, value: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, one in value.items():
        if isinstance(one, Mapping):
            found.update(_flat(f"{prefix}{name}.", one))
        else:
            found[f"{prefix}{name}"] = one
    return found


def _options(command: str) -> dict[str, Any]:
    """A command's options by name, and the rest of it; without those that name the run."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    words = _without_python(words)
    found: dict[str, Any] = {}
    rest: list[str] = []
    place = 0
    while place < len(words):
        word = words[place]
        name, equals, value = word.partition("=")
        if not word.startswith("-") or word == "-":
            rest.append(word)
        else:
            if not equals and place + 1 < len(words) and not words[place + 1].startswith("-"):
                place += 1
                value = words[place]
            if name not in _OWN_WORDS:
                found[name] = value
        place += 1
    return {**found, "command": " ".join(rest)} if rest else found


def _is_known(found: Mapping[str, Any], name: str, value: str) -> bool:
    """Whether the program's own configuration has this option of its command, with the same value."""
    own = found.get(name.lstrip("-").replace("-", "_")) if name.startswith("-") else None
    return own is not None and (str(own) == value or _number(own) == _number(value) is not None)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _without_python(words: list[str]) -> list[str]:
    """The program and what it was given; the interpreter and its own options are no settings."""
    if not words or not words[0].rpartition("/")[2].startswith("python"):
        return words
    place = 1
    while place < len(words) and words[place].startswith("-"):
        if words[place] in ("-m", "-c"):
            return words[place + 1 :]
        place += 2 if words[place] in ("-W", "-X") else 1
    return words[place:]
