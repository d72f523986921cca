"""A client that most rounds wait for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.performance.path import ROUNDS_READ, finding_of, rounds_in
from stethos.diagnose.system.straggler import Straggler
from stethos.diagnose.window import Window
from stethos.profile.bottleneck import told
from stethos.profile.what_if import slow_clients


@dataclass(frozen=True, slots=True)
class CriticalClient:
    """Rounds would be much shorter if one client were as fast as the others.

    What it looks at: the critical path of each round: the last client, and what the round would have taken if its
    download, training or upload had been at the others' median. Clients that `straggler` already names are left out.

    Why it matters: it tells how much there is to gain before anybody looks for a faster machine or link.

    Not a fault when: the client has more samples than the others; then it says so.

    Next step: look at the phase it names; give the client less local work, or set a deadline.
    """

    code: ClassVar[str] = "PRF004"
    name: ClassVar[str] = "critical-client"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Needs] = {
        "rounds": frozenset({"round", "duration_ms"}),
        "client_rounds": frozenset({"client", "round", "duration_ms"}),
    }
    reads: ClassVar[Needs] = ROUNDS_READ
    explains: ClassVar[frozenset[str]] = frozenset()

    times: float = 1.8
    share: float = 0.15
    rounds: int = 3
    at_least_ms: float = 50.0

    def check(self, window: Window) -> Iterator[Finding]:
        named = {client for finding in Straggler().check(window) for client in finding.subject.clients}
        for one in rounds_in(window):
            slow = slow_clients(one, self.times) if len(one.numbers) >= self.rounds else None
            if slow is None or slow.share < self.share or named & set(slow.clients):
                continue
            if slow.own_ms - slow.usual_ms >= self.at_least_ms:
                yield finding_of(self, told(one, slow), first=one.numbers[0], unit="round")
