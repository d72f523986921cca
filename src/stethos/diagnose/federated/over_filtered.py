"""FED019: a client whose own privacy filter leaves nothing of its update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import threshold
from stethos.diagnose.federated import filtered_update, inside_evidence
from stethos.diagnose.federated.accusation import ALARM_RATE, SURE_OF_UPDATES, weighed_in
from stethos.diagnose.federated.cohort import NEEDS, READS, joined_needs
from stethos.diagnose.federated.filtered_update import AppliedFilter, filters_told, over_filtered
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.window import Window
from stethos.store.literal import literal


@dataclass(frozen=True, slots=True)
class OverFiltered:
    """A client trains as the others do, but the privacy filter of its own site leaves little of its update.

    What it looks at: what the client's optimizer did against what it sent. Filters clip an update to one length, keep
    few of its elements, or add noise of one size. Also the filters that a site names itself
    (`client_rounds.filters`): the mods of a Flower app, the filters of an NVFlare site, or
    `site.note(filters="percentile 10")`.

    Why it matters: its data do not reach the model. The site is not faulty: it protects its data more than the training
    can tolerate.

    Not a fault when: all clients do the same; then none stands out. Noise that scales with the update, a flipped sign
    and NaN are not filters: see faulty-client.

    Next step: agree with the site on a weaker setting, or leave it out of the average.
    """

    code: ClassVar[str] = "FED019"
    name: ClassVar[str] = "over-filtered"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Mapping[str, frozenset[str]]] = NEEDS
    reads: ClassVar[Mapping[str, frozenset[str]]] = joined_needs(READS, inside_evidence.READS, filtered_update.READS)
    explains: ClassVar[frozenset[str]] = frozenset({"client-anomaly", "slow-progress", "plateau"})

    probability: float = threshold(SURE_OF_UPDATES, "probability from which on updates alone accuse")
    alarm_rate: float = threshold(
        ALARM_RATE, "share of clean federations in which evidence from inside may accuse somebody"
    )

    def check(self, window: Window) -> Iterator[Finding]:
        for federation, weighed in window.derive(weighed_in).items():
            accused = weighed.accused(self.alarm_rate, self.probability)
            for one in over_filtered(weighed, filters_told(window, federation), accused).values():
                yield self._finding(one, federation)

    def _finding(self, one: AppliedFilter, federation: str | None) -> Finding:
        where = "" if federation is None else f" AND federation = {literal(federation)}"
        named = f" ({one.name})" if one.name else ""
        mine = f"client = {literal(one.client)}{where}"
        shown = [
            Evidence(
                f"it {one.words}; the cosine to what its training did is {one.left:.2f}",
                f"SELECT round, value FROM evidence WHERE kind = 'turn' AND {mine} ORDER BY round",
            )
        ] if one.left == one.left else []  # fmt: skip
        if one.name:
            shown.append(
                Evidence(
                    f"its site names the filters {one.name}",
                    f"SELECT round, filters FROM client_rounds WHERE {mine} ORDER BY round",
                )
            )
        return Finding(
            self.code, self.name, "over-filtered", self.severity,
            f"client {one.client}{'' if federation is None else f' of {federation}'}: its own privacy filter{named} "
            "leaves little of its update",
            Subject((one.client,), federation=federation),
            confidence=0.9 if one.left == one.left else 0.7,
            evidence=tuple(shown),
            next_step="agree with the site on a weaker filter, or leave it out of the average; its training is fine",
            detail={"filter": one.name or one.words, "left": None if one.left != one.left else one.left},
        )  # fmt: skip
