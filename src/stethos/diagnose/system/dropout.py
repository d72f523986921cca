"""Clients that do not reply."""

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
class ClientDropout:
    """A client is asked to take part and keeps giving no reply.

    What it looks at: the status `dropped` of client turns, unless the error is one of the link (compare
    `communication-failure`), as a share of the client's turns since the first one.

    Why it matters: its data are missing from the model, and if the clients that drop out have something in common
    (old phones, one hospital) the model is biased against them.

    Not a fault when: clients come and go by design, as phones do. Raise `share`, or silence it.

    Next step: ask who runs the client whether it is up; leave it out of the selection until it is.
    """

    code: ClassVar[str] = "SYS003"
    name: ClassVar[str] = "client-dropout"
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
            lambda one: f"{one.who} dropped out in {one.how_often}",
            "check that it is up and can reach the server; leave it out of the selection until it is",
        )


def _is_it(status: str, error: str) -> bool:
    return status == "dropped" and not is_of_the_link(error)
