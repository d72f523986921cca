"""Clients whose training raises an exception."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.system.absence import absent_clients
from stethos.diagnose.system.communication_failure import is_of_the_link
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class ClientFailure:
    """A client's local training keeps failing with an exception.

    What it looks at: the status `failed` of client turns, and the exception that came with it; errors of the link are
    `communication-failure`.

    Why it matters: an exception is a bug, bad data or a lack of memory on that client, and it will not pass by
    itself.

    Not a fault when: the failure was provoked, as in a test of the server.

    Next step: read the traceback, which is recorded beside the error.
    """

    code: ClassVar[str] = "SYS005"
    name: ClassVar[str] = "client-failure"
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
            lambda one: f"{one.who} failed in {one.how_often}{_reason(one.error)}",
            "read the traceback: SELECT traceback FROM client_rounds WHERE status = 'failed' LIMIT 1",
        )


def _is_it(status: str, error: str) -> bool:
    return status == "failed" and not is_of_the_link(error)


def _reason(error: str) -> str:
    return f": {error[:80]}" if error else ""
