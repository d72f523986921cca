"""FED001: faulty clients, with the kind of fault named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from stethos.diagnose.detector import CannotTell, threshold
from stethos.diagnose.federated import filtered_update, inside_evidence
from stethos.diagnose.federated.accusation import ALARM_RATE, SURE_OF_UPDATES, Weighed, weighed_in
from stethos.diagnose.federated.client_evidence import KINDS, evidence_of, of_federation, shown_inside
from stethos.diagnose.federated.cohort import NEEDS, READS, Cohort, joined_needs
from stethos.diagnose.federated.filtered_update import filters_told, over_filtered
from stethos.diagnose.federated.inside import InsideMargins
from stethos.diagnose.federated.verdict import FEWEST_CLIENTS, ClientVerdict, clients_per_round, clients_without_peers
from stethos.diagnose.finding import Finding, Severity, Subject
from stethos.diagnose.window import Window

_UNKNOWN_CLASSES = (
    "have it check its labels, unless it alone holds a class: `site.confusion(labels, answers)` tells which"
)
_OF_ALL = {"nan": "send NaN or infinite weights", "free-rider": "send updates without training"}


@dataclass(frozen=True, slots=True)
class FaultyClient:
    """A client's updates, or its data, are not what they should be, and the kind of fault can be named.

    What it looks at: where clients train with torch during a turn, what they train on, class by class, what their
    optimizer does, and what they send, each against the other clients; the incoming global model's loss and answers on
    the client's own labels; fingerprints of updates (size, direction, spread over layers and inputs) against the robust
    centre of the others and against the past. Updates alone accuse only who stands far apart, at most 75 % sure.
    Why it matters: one client in fifty with flipped labels teaches the global model the wrong thing, and no loss curve
    shows it.
    Not a fault when: the client alone holds a class, or has very few samples. Compare label-skew; where clients hardly
    have labels in common, faults of data are reported only for those that do. More than three clients in ten with the
    same fault become the majority that others are compared with.
    Next step: `stethos diagnose --client CLIENT`, then `stethos compare-clients CLIENT OTHER`; leave it out of the
    average until it is fixed.
    """

    code: ClassVar[str] = "FED001"
    name: ClassVar[str] = "faulty-client"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Mapping[str, frozenset[str]]] = NEEDS
    reads: ClassVar[Mapping[str, frozenset[str]]] = joined_needs(READS, inside_evidence.READS, filtered_update.READS)
    explains: ClassVar[frozenset[str]] = frozenset(
        {
            "non-finite-loss", "non-finite-gradients", "non-finite-weights", "divergence", "oscillation", "plateau",
            "slow-progress", "weight-explosion", "exploding-gradients", "aggregation-bias", "server-instability",
            "series-anomaly", "update-to-weight-ratio", "client-anomaly", "non-finite-model",
        }
    )  # fmt: skip

    alarm_rate: float = threshold(
        ALARM_RATE, "share of clean federations in which evidence from inside may accuse somebody"
    )
    probability: float = threshold(SURE_OF_UPDATES, "probability from which on updates alone accuse")

    def check(self, window: Window) -> Iterator[Finding]:
        reasons: list[CannotTell] = []
        is_any = False
        for federation, weighed in window.derive(weighed_in).items():
            try:
                for finding in self._findings(federation, weighed, filters_told(window, federation)):
                    is_any = True
                    yield finding
            except CannotTell as reason:
                reasons.append(reason)
            else:
                is_any = True
        if not is_any:
            raise reasons[0]

    def _findings(self, federation: str | None, weighed: Weighed, told: Mapping[str, str]) -> Iterator[Finding]:
        cohort = weighed.cohort
        if not cohort.clients:
            raise CannotTell("no updates of clients were recorded")
        if not np.isfinite(cohort.norm).any() and not (cohort.odd > 0).any():
            raise CannotTell("`updates.norm` was not recorded")
        accused, split = weighed.accused(self.alarm_rate, self.probability), weighed.split
        filtered = over_filtered(weighed, told, accused)
        verdicts = [one for one in accused if one.client not in filtered]
        for kind in dict.fromkeys(one.kind for one in verdicts if one.is_certain):
            alike = [one for one in verdicts if one.is_certain and one.kind == kind]
            if len(alike) == len(cohort.clients) > 1:
                yield self._common(federation, cohort, alike)
                verdicts = [one for one in verdicts if one not in alike]
        for verdict in verdicts:
            yield self._finding(cohort, verdict, federation, weighed.margins)
        present = clients_per_round(cohort)
        if present < FEWEST_CLIENTS:
            per_round = " in a round" if len(cohort.clients) > present else ""
            count = f"{present} client{'s' * (present != 1)}{per_round}"
            raise CannotTell(f"{count} are too few to compare, at least {FEWEST_CLIENTS} are needed")
        if split:
            raise CannotTell(
                f"{split} of {len(cohort.clients)} clients look faulty against each other, so there is no majority "
                "to compare with; masked updates (secure aggregation) look like this"
            )
        if alone := clients_without_peers(cohort):
            raise CannotTell(
                f"{alone} of {len(cohort.clients)} clients hold most samples of their labels themselves, so their data "
                "cannot be compared with others'; their updates were"
            )

    def _common(self, federation: str | None, cohort: Cohort, verdicts: list[ClientVerdict]) -> Finding:
        """What every client does is no fault of one of them."""
        one = self._finding(cohort, min(verdicts, key=lambda verdict: verdict.first), federation)
        last = None if any(verdict.last is None for verdict in verdicts) else max(v.last or 0 for v in verdicts)
        return replace(
            one,
            title=f"all {len(verdicts)} clients{of_federation(federation)} {_OF_ALL[one.kind]}",
            subject=replace(one.subject, clients=cohort.clients, last=last),
            next_step="look at what they share: the model they begin with, the loss, the learning rate, the code",
            is_open=last is None,
        )

    def _finding(
        self,
        cohort: Cohort,
        verdict: ClientVerdict,
        federation: str | None = None,
        margins: InsideMargins | None = None,
    ) -> Finding:
        words, _, _, todo = KINDS[verdict.kind]
        if verdict.source is not None:
            words = f"labels class {verdict.source} as class {verdict.target}"
        elif verdict.kind == "label-flip":
            todo = _UNKNOWN_CLASSES
        detail: dict[str, Any] = {"guilt": verdict.guilt}
        if verdict.source is not None:
            detail |= {"source": verdict.source, "target": verdict.target}
        shown = shown_inside(margins, verdict, federation)
        return Finding(
            code=self.code,
            name=self.name,
            kind=verdict.kind,
            severity=self.severity,
            title=f"client {verdict.client}{of_federation(federation)} {words}",
            subject=Subject((verdict.client,), first=verdict.first, last=verdict.last, federation=federation),
            confidence=min(verdict.probability, 0.99),
            evidence=(*shown, *evidence_of(cohort, verdict, federation)),
            next_step=todo,
            detail=detail,
            is_open=verdict.last is None,
        )
