"""Clients that cannot be reached."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.system.absence import Absence, absent_clients
from stethos.diagnose.window import Window

_LINK = re.compile(
    r"connect(?:ion)?(?: |\w*error)|unreachable|broken ?pipe|econn|etimedout|\bsockets?\b|\bssl\b|"
    r"\btls\b|certificate|handshake|name or service|getaddrinfo|\bdns\b|grpc|\brpc\b|(?:service|code\.?) ?unavail|"
    r"deadline.?exceeded|network is|network err|no route to host|incompleteread|remote end closed|bad gateway|"
    r"(?:http|status|code)\D{0,6}50[234]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class CommunicationFailure:
    """A client cannot be reached, or its connection breaks.

    What it looks at: the error texts of turns that gave no update: refused, reset or unreachable connections, name
    resolution, TLS, gRPC's UNAVAILABLE and DEADLINE_EXCEEDED, broken pipes.

    Why it matters: the client may be healthy; what is between it and the server is not. Where most clients are
    concerned, the server or its network is to blame, and that is said.

    Not a fault when: clients go offline by design.

    Next step: try the connection by hand from the client's machine.
    """

    code: ClassVar[str] = "SYS006"
    name: ClassVar[str] = "communication-failure"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"client_rounds": frozenset({"client", "round", "status"})}
    reads: ClassVar[Needs] = {"client_rounds": frozenset({"federation", "t_ns", "error"})}
    explains: ClassVar[frozenset[str]] = frozenset()

    rounds: int = 2
    share: float = 0.2
    wide: float = 0.5

    def check(self, window: Window) -> Iterator[Finding]:
        yield from absent_clients(
            self,
            window,
            _is_it,
            lambda one: f"{_whose(one)}: {one.error[:60]}",
            "try the connection from the client's machine; check firewall and certificate",
        )


def _is_it(status: str, error: str) -> bool:
    return status != "ok" and is_of_the_link(error)


def is_of_the_link(error: str) -> bool:
    """Whether an error text speaks of the connection rather than of the client's training."""
    return bool(_LINK.search(error))


def _whose(one: Absence) -> str:
    if one.is_wide:
        return f"{len(one.clients)} clients, so most of them, lose the connection in {one.how_often}"
    return f"the connection of {one.who} failed in {one.how_often}"
