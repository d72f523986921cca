"""The commands that a server runs for others: those in `REMOTE_COMMANDS`, with the options listed there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stethos.errors import UsageError
from stethos.web.keys import Capability

LARGEST_TEXT = 512 << 10
_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}|rank:\d{1,6}|all")
_VALUE = re.compile(r"[A-Za-z0-9.+-]{1,32}")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_=+][A-Za-z0-9._=+-]{0,99}")


@dataclass(frozen=True, slots=True)
class RemoteCommand:
    """The capability a command needs, its options (one that takes a value ends with =), and what its words are.

    `words` is "none", "text" (SQL or code, handed over on stdin) or "plain" (one short word, as `x0.1`).
    """

    needs: Capability
    options: tuple[str, ...] = ("--json",)
    words: Literal["none", "text", "plain"] = "none"
    has_target: bool = True


REMOTE_COMMANDS: dict[str, RemoteCommand] = {
    "ls": RemoteCommand("read", has_target=False),
    "backtrace": RemoteCommand("read", ("--json", "--native")),
    "query": RemoteCommand("read", ("--json", "--csv", "--limit=", "--timeout="), "text"),
    "collectives": RemoteCommand("read", ("--json", "--calls")),
    "sync": RemoteCommand("read"),
    "eval": RemoteCommand("act", ("--json", "--now", "--timeout=", "--wait="), "text"),
    "lr": RemoteCommand("act", ("--json", "--at-step="), "plain"),
    "clip": RemoteCommand("act", ("--json", "--at-step="), "plain"),
    "gc": RemoteCommand("act"),
    "checkpoint": RemoteCommand("act", words="plain"),
}


@dataclass(frozen=True, slots=True)
class CommandCall:
    """One call of a remote command, checked; a text comes on stdin."""

    name: str
    target: str | None
    options: tuple[str, ...]
    text: str | None

    def command_line(self) -> list[str]:
        target = ["-t", self.target] if self.target is not None else []
        return [*target, self.name, *self.options, *(["-"] if self.text is not None else [])]


def checked_call(name: str, target: str | None, words: Sequence[str], text: str | None = None) -> CommandCall:
    """The call, if all of it is allowed; UsageError otherwise.

    Both sides check. `words` are those after the command; a text may stand among them or come by itself.
    """
    command = REMOTE_COMMANDS.get(name)
    if command is None:
        raise UsageError(f"`{name}` does not work through a gateway", hint=f"these do: {', '.join(REMOTE_COMMANDS)}")
    options, rest = _options(command, words)
    if target and (not command.has_target or not is_plain_target(target)):
        raise UsageError(f"no target {target!r} for `{name}`", hint="HOST:PORT[/RUN[/rank:3 or /all]], never a path")
    if command.words == "text":
        text = " ".join(word for word in rest if word != "-") if text is None else text
        if len(text.encode("utf-8", "surrogatepass")) > LARGEST_TEXT:
            raise UsageError(f"a text of {len(text):,} characters is too long for a gateway")
        return CommandCall(name, target or None, options, text)
    if text is not None or len(rest) > (1 if command.words == "plain" else 0):
        raise UsageError(f"too many words for `{name}`", hint=f"see `stethos {name} --help`")
    if rest and not _PLAIN_WORD.fullmatch(rest[0]):
        raise UsageError(f"{rest[0]!r} is not allowed through a gateway", hint="a plain word, without a path")
    return CommandCall(name, target or None, (*options, *rest), None)


def _options(command: RemoteCommand, words: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """The options among the words, each with its value, and the other words."""
    options: list[str] = []
    rest: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        option, equals, value = word.partition("=")
        if f"{option}=" in command.options:
            if not equals:
                value = waiting.pop(0) if waiting else ""
            if not _VALUE.fullmatch(value):
                raise UsageError(f"{option} needs another value than {value!r}")
            options.append(f"{option}={value}")
        elif word in command.options:
            options.append(word)
        elif word.startswith("-") and word != "-":
            raise UsageError(
                f"{option} does not work through a gateway", hint=f"these do: {', '.join(command.options)}"
            )
        else:
            rest.append(word)
    return tuple(options), rest


def is_plain_target(text: str) -> bool:
    """Whether this is a run's name, a pid or a rank; never a path."""
    parts = text.split("/")
    return len(parts) <= 2 and all(_TARGET.fullmatch(part) for part in parts)
