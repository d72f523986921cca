"""Clients that miss the deadline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.system.absence import absent_clients
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class ClientTimeout:
    """A client keeps missing the deadline of the round.

    What it looks at: the status `timeout` of client turns as a share of the client's turns since the first one.

    Why it matters: its work is done and thrown away, and the round lasts until the deadline.

    Not a fault when: the deadline is tight on purpose and clients are sampled with a margin. Raise `share`.

    Next step: compare its times with those of the others; raise the deadline or give it less local work.
    """

    code: ClassVar[str] = "SYS004"
    name: ClassVar[str] = "client-timeout"
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
            lambda one: f"{one.who} missed the deadline in {one.how_often}",
            "compare its times with the others'; raise the deadline, or give it fewer steps",
        )


def _is_it(status: str, error: str) -> bool:
    return status == "timeout"
