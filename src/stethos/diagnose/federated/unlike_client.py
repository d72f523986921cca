"""FED022: a client that is unlike the others, and not surely enough faulty to be accused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import threshold
from stethos.diagnose.federated import inside_evidence
from stethos.diagnose.federated.accusation import ALARM_RATE, Weighed, weighed_in
from stethos.diagnose.federated.client_evidence import evidence_of, of_federation, shown_inside
from stethos.diagnose.federated.cohort import NEEDS, READS
from stethos.diagnose.finding import Finding, Severity, Subject
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class UnlikeClient:
    """A client differs from the others: it may be faulty, or just have other data.

    What it looks at: the same as `faulty-client`. The probability is too low to accuse the client, but high enough to
    ask.
    Why it matters: of clients that differ this much, about two in three are faulty; the rest are sites with other
    people, sensors or sizes.
    Not a fault when: the site is known to be different.
    Next step: `stethos compare-clients CLIENT OTHER`; prove it with `stethos prove CLIENT`, or ask the site.
    """

    code: ClassVar[str] = "FED022"
    name: ClassVar[str] = "unlike-client"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Mapping[str, frozenset[str]]] = NEEDS
    reads: ClassVar[Mapping[str, frozenset[str]]] = {**READS, **inside_evidence.READS}
    explains: ClassVar[frozenset[str]] = frozenset()

    alarm_rate: float = threshold(ALARM_RATE, "as that of `faulty-client`: clients accused there are left out here")

    def check(self, window: Window) -> Iterator[Finding]:
        for federation, weighed in window.derive(weighed_in).items():
            yield from self._remarks(federation, weighed)

    def _remarks(self, federation: str | None, weighed: Weighed) -> Iterator[Finding]:
        for one in weighed.remarks(self.alarm_rate):
            shown = shown_inside(weighed.margins, one, federation)
            yield Finding(
                self.code,
                self.name,
                one.kind,
                self.severity,
                f"client {one.client}{of_federation(federation)} is unlike the others; not sure that it is faulty",
                Subject((one.client,), first=one.first, last=one.last, federation=federation),
                confidence=one.probability,
                evidence=(*shown, *evidence_of(weighed.cohort, one, federation)),
                next_step="look at what differs, and ask the site before leaving it out",
                detail={"guilt": one.guilt},
                is_open=one.last is None,
            )
