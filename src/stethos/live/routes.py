"""What can be asked through a gateway: nothing but what stands in `ROUTES`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stethos.errors import UsageError
from stethos.live.keys import Right

LARGEST_TEXT = 512 << 10
_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}|rank:\d{1,6}|all")
_VALUE = re.compile(r"[A-Za-z0-9.+-]{1,32}")


@dataclass(frozen=True, slots=True)
class Route:
    """One command: the right it takes, its options without and with a value, and what its words are.

    `words` is "none", "text" (SQL or code, handed over on stdin) or "plain" (one short word, as `x0.1`).
    """

    right: Right
    flags: frozenset[str] = frozenset({"--json"})
    values: frozenset[str] = frozenset()
    words: str = "none"
    has_target: bool = True


ROUTES: dict[str, Route] = {
    "ls": Route("read", has_target=False),
    "backtrace": Route("read", frozenset({"--json", "--native"})),
    "query": Route("read", frozenset({"--json", "--csv"}), frozenset({"--limit", "--timeout"}), "text"),
    "collectives": Route("read", frozenset({"--json", "--calls"})),
    "sync": Route("read"),
    "eval": Route("act", frozenset({"--json", "--now"}), frozenset({"--timeout", "--wait"}), "text"),
    "lr": Route("act", values=frozenset({"--at-step"}), words="plain"),
    "clip": Route("act", values=frozenset({"--at-step"}), words="plain"),
    "gc": Route("act"),
    "checkpoint": Route("act", words="plain"),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, checked against its route."""

    name: str
    target: str | None
    options: tuple[str, ...]
    text: str | None

    @property
    def right(self) -> Right:
        return ROUTES[self.name].right

    def command(self) -> list[str]:
        """The words of the command on the gateway's machine; a text comes on stdin."""
        target = ["-t", self.target] if self.target is not None else []
        return [*target, self.name, *self.options, *(["-"] if self.text is not None else [])]


def asked(name: str, target: str | None, words: Sequence[str], text: str | None = None) -> Asked:
    """What was asked, if it is allowed at all; UsageError otherwise.

    Called on both sides: `words` are those after the command. A text may stand among them or come by itself.
    """
    route = ROUTES.get(name)
    if route is None:
        raise UsageError(f"a gateway has no {name!r}", hint=f"it has {', '.join(ROUTES)}")
    options: list[str] = []
    rest: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        option, equals, value = word.partition("=")
        if word in route.flags:
            options.append(word)
        elif option in route.values:
            if not equals and not waiting:
                raise UsageError(f"{option} needs a value")
            value = value if equals else waiting.pop(0)
            if not _VALUE.fullmatch(value):
                raise UsageError(f"{option} {value!r} is not allowed through a gateway")
            options.append(f"{option}={value}")
        elif word.startswith("-") and word != "-":
            raise UsageError(f"{option} is not allowed through a gateway", hint=_options_of(route))
        else:
            rest.append(word)
    return _finished(name, route, _checked_target(route, name, target), options, rest, text)


def _finished(
    name: str, route: Route, target: str | None, options: list[str], rest: list[str], text: str | None
) -> Asked:
    if route.words == "text":
        if text is None:
            text = " ".join(word for word in rest if word != "-") if rest else ""
        if len(text.encode("utf-8", "surrogatepass")) > LARGEST_TEXT:
            raise UsageError(f"a text of {len(text):,} characters is too long for a gateway")
        return Asked(name, target, tuple(options), text)
    if text is not None or len(rest) > (1 if route.words == "plain" else 0):
        raise UsageError(f"`{name}` takes no such words through a gateway")
    if rest and (not re.fullmatch(r"[A-Za-z0-9._=+-]{1,100}", rest[0]) or rest[0].startswith((".", "-"))):
        raise UsageError(f"{rest[0]!r} is not allowed through a gateway", hint="a plain word, without a path")
    return Asked(name, target, (*options, *rest), None)


def _checked_target(route: Route, name: str, target: str | None) -> str | None:
    """A run's name, a pid, a rank: never a path."""
    if target is None or target == "":
        return None
    if not route.has_target:
        raise UsageError(f"`{name}` takes no target through a gateway")
    parts = target.split("/")
    if len(parts) > 2 or not all(_TARGET.fullmatch(part) for part in parts):
        raise UsageError(f"no target {target!r} behind a gateway", hint="HOST:PORT[/RUN[/rank:3 or /all]]")
    return target


def _options_of(route: Route) -> str:
    return f"it takes {', '.join(sorted(route.flags | route.values))}"
