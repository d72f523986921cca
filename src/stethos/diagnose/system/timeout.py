"""Clients that miss the deadline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity, Subject
from stethos.diagnose.system.absence import absences
from stethos.diagnose.turn import turns_of
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
        for turns in turns_of(window):
            for one in absences(turns, _is_it, rounds=self.rounds, share=self.share, wide=self.wide):
                yield Finding(
                    self.code,
                    self.name,
                    self.name,
                    one.worse(self.severity),
                    f"{one.who} missed the deadline in {one.how_often}",
                    Subject(one.clients, first=one.first, last=one.last),
                    confidence=one.confidence,
                    evidence=(one.evidence,),
                    next_step="compare its times with the others'; raise the deadline, or give it fewer steps",
                    detail={"share": one.share, "error": one.error},
                    is_open=one.last is None,
                )


def _is_it(status: str, error: str) -> bool:
    return status == "timeout"
