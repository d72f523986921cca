"""A detector in a package of its own; Stethos finds it by its entry point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class LateClients:
    """A client spends more time on its upload than on its training.

    What it looks at: `upload_ms` and `compute_ms` of each client's turns, as medians.

    Why it matters: a faster link, or a compressed update, shortens the round more than a faster machine would.

    Not a fault when: the client has very few samples.

    Next step: compare the client with others: `stethos compare-clients CLIENT`
    """

    code: ClassVar[str] = "LATE001"
    name: ClassVar[str] = "late-client"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"client_rounds": frozenset({"client", "round", "upload_ms", "compute_ms"})}
    reads: ClassVar[Needs] = {}
    explains: ClassVar[frozenset[str]] = frozenset()

    times: float = 1.0
    rounds: int = 3

    def check(self, window: Window) -> Iterator[Finding]:
        for client, turns in window.frame("client_rounds").groups("client").items():
            ratio = float(np.nanmedian(turns["upload_ms"] / turns["compute_ms"]))
            if len(turns) >= self.rounds and ratio > self.times:
                yield Finding(
                    self.code,
                    self.name,
                    self.name,
                    self.severity,
                    f"client {client} uploads {ratio:.1f} times as long as it trains",
                    Subject(clients=(client,), first=int(turns["round"].min())),
                    evidence=(Evidence(f"median upload_ms / compute_ms is {ratio:.1f}"),),
                    next_step=f"stethos compare-clients {client}",
                )
