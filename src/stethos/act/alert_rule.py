"""The file of alerts: when to tell somebody, and how.

[[rule]]
name = "faulty clients"          # any finding that is open: severity, code, client narrow it down
code = "faulty-client"
severity = "warning"
sinks = ["ops"]
repeat_s = 3600                  # say it again while it lasts; 0: never

[[rule]]
name = "loss too high"           # or a number: the query's last row, last column
query = "SELECT loss FROM rounds ORDER BY round DESC LIMIT 1"
above = 3.0
sinks = ["ops", "night"]

[sink.ops]
type = "webhook"
url = "https://chat.example/hook"
format = "slack"                 # json, slack or discord

[sink.night]
type = "mail"
host = "smtp.example"
sender = "stethos@example"
to = ["me@example"]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from stethos.diagnose.finding import Severity
from stethos.errors import UsageError
from stethos.record.border import open_named
from stethos.toml_text import toml_in

_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Rule:
    """When to tell whom: about findings, or where a query's number is `above` or `below` a limit."""

    name: str
    sinks: tuple[str, ...]
    severity: str = "warning"
    code: str = ""
    client: str = ""
    query: str = ""
    above: float | None = None
    below: float | None = None
    repeat_s: float = 3600.0

    @property
    def least(self) -> Severity:
        return Severity[self.severity.upper()]


@dataclass(frozen=True, slots=True)
class WebhookSink:
    """An HTTP POST; private addresses are refused unless `allow_private`."""

    url: str
    format: str = "json"
    allow_private: bool = False
    timeout_s: float = 5.0
    header_file: str = ""  # a file with one line `Name: value`, for a secret


@dataclass(frozen=True, slots=True)
class MailSink:
    """A mail by SMTP; `password_file` holds the password alone."""

    host: str
    sender: str
    to: tuple[str, ...]
    port: int = 25
    encryption: str = "none"  # none, starttls or tls
    user: str = ""
    password_file: str = ""
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class CommandSink:
    """A command without a shell; it gets the message as JSON on stdin."""

    command: tuple[str, ...]
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class LogSink:
    """A line of JSON per message at the end of a file."""

    path: str


Sink = WebhookSink | MailSink | CommandSink | LogSink
_SINKS: dict[str, type[Sink]] = {"webhook": WebhookSink, "mail": MailSink, "command": CommandSink, "log": LogSink}
_CHOICES = {"format": ("json", "slack", "discord"), "encryption": ("none", "starttls", "tls")}


@dataclass(frozen=True, slots=True)
class Alerts:
    """What a file of alerts says."""

    rules: tuple[Rule, ...]
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    every_s: float = 5.0
    group_s: float = 2.0


def _text_of(path: Path) -> str:
    with open_named(path) as file:
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise ValueError(f"it is larger than {_LARGEST:,} bytes")
    return text.decode()


def read_alerts(path: Path) -> Alerts:
    """The file, checked; UsageError says what is wrong with it and where."""
    try:
        content = toml_in(_text_of(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="docs/alerts.md shows one") from None
    except ValueError as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="it is written in TOML 1.0") from None
    unknown = set(content) - {"rule", "sink", "every_s", "group_s"}
    if unknown:
        raise UsageError(f"{path}: no setting {sorted(unknown)[0]!r}", hint="write [[rule]] and [sink.NAME]")
    tables = content.get("sink", {})
    if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()):
        raise UsageError(f"{path}: sink must be a table", hint="write [sink.NAME]")
    sinks = {name: _sink(table, f"{path}: sink {name}") for name, table in tables.items()}
    listed = content.get("rule", [])
    if not isinstance(listed, list) or not listed:
        raise UsageError(f"{path} has no rules", hint="write [[rule]] with a name and its sinks")
    rules = tuple(_rule(table, f"{path}: rule {number}", sinks) for number, table in enumerate(listed, 1))
    names = [rule.name for rule in rules]
    if len(set(names)) < len(names):
        raise UsageError(f"{path}: two rules have the same name", hint="their state is kept by name")
    times = {name: content[name] for name in ("every_s", "group_s") if name in content}
    for name, value in times.items():
        if not _is_number(value) or value < 0:
            raise UsageError(f"{path}: {name} is {value!r}", hint="a number of seconds")
    return Alerts(rules, sinks, **times)


def _sink(table: dict[str, Any], where: str) -> Sink:
    kind = _SINKS.get(table.get("type", ""))
    if kind is None:
        raise UsageError(f"{where}: type is {table.get('type')!r}", hint=f"types: {', '.join(_SINKS)}")
    sink: Sink = _made(kind, {name: value for name, value in table.items() if name != "type"}, where)
    return sink


def _rule(table: Any, where: str, sinks: Mapping[str, Sink]) -> Rule:
    if not isinstance(table, dict):
        raise UsageError(f"{where} is {table!r}", hint="write [[rule]]")
    rule: Rule = _made(Rule, table, where)
    where = f"{where} ({rule.name})"
    for name in rule.sinks:
        if name not in sinks:
            raise UsageError(f"{where}: no sink {name!r}", hint=f"sinks: {', '.join(sinks) or 'none'}")
    if rule.severity.upper() not in Severity.__members__:
        raise UsageError(f"{where}: severity is {rule.severity!r}", hint="info, warning or error")
    has_limit = rule.above is not None or rule.below is not None
    if bool(rule.query) != has_limit:
        raise UsageError(f"{where}: a query needs above or below, and they need a query", hint='query = "SELECT ..."')
    if rule.code:
        from stethos.diagnose.detectors import detector_named

        detector_named(rule.code)
    return rule


def _made(kind: type[Any], table: Mapping[str, Any], where: str) -> Any:
    """An instance of a dataclass from a table of TOML, its types checked."""
    known = {one.name: one for one in fields(kind)}
    for name in table:
        if name not in known:
            raise UsageError(f"{where}: no setting {name!r}", hint=f"settings: {', '.join(known)}")
    values: dict[str, Any] = {}
    for name, one in known.items():
        if name not in table:
            if one.default is MISSING:
                raise UsageError(f"{where}: {name} is missing", hint=f"settings: {', '.join(known)}")
            continue
        value = table[name]
        if not _fits(str(one.type), value) or (name in _CHOICES and value not in _CHOICES[name]):
            wanted = ", ".join(_CHOICES.get(name, (str(one.type).removesuffix(" | None"),)))
            raise UsageError(f"{where}: {name} is {value!r}", hint=f"it should be: {wanted}")
        values[name] = tuple(value) if isinstance(value, list) else float(value) if "float" in str(one.type) else value
    return kind(**values)


def _fits(kind: str, value: Any) -> bool:
    match kind:
        case "str":
            return isinstance(value, str)
        case "bool":
            return isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool) and value >= 0
        case "tuple[str, ...]":
            return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)
    return _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
