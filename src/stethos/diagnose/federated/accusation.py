"""Whom a federation's evidence accuses, all of it together.

What is exact accuses by itself, and so do rules that were right wherever they were new. All else is weighed: rules on
what clients show from inside, plain numbers of their data, training, sending and updates, and the networks that judge
updates. Who stands out, but not surely enough, is told as a remark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.cohort import Cohort, cohorts_of, only_federation
from stethos.diagnose.federated.inside import InsideMargins, inside_margins, loss_above_others, named_in, span_of
from stethos.diagnose.federated.inside_evidence import InsideEvidence, inside_of
from stethos.diagnose.federated.inside_update import trains_otherwise
from stethos.diagnose.federated.verdict import (
    FEWEST_CLIENTS,
    SURE,
    ClientVerdict,
    certain_on,
    chances_on,
    clients_per_round,
    standing_apart,
    verdicts_and_split,
    verdicts_on,
)
from stethos.diagnose.federated.weighing import load_weights, numbers_of
from stethos.diagnose.window import Window

Array = npt.NDArray[np.float64]
ALARM_RATE = 0.02  # of evidence from inside
SURE_OF_UPDATES = 0.99  # by the networks that judge updates, where nothing was seen inside
GAP = 5.0  # times as far from the median client as the second farthest of the others, too
_MOST_SURE_OF_UPDATES = 0.75  # the share that is right outside of the lab
_WORTH_A_REMARK = 0.25  # probability
_SHOWN = 0.8  # of the clients: then a federation is judged from inside
_MOST_SURE = 0.97
# Rules that accuse alone, and the share that was right on sets that no rule had been made on when they were opened. All
# others, and what rules look at, only count among what is weighed.
_ALONE = {
    **dict.fromkeys(("nan", "free-rider", "sign-flip", "stale"), 0.95),
    **dict.fromkeys(
        ("partly", "constant", "relabelled", "targets", "imputed", "duplicates", "not-finite", "units"), 0.9
    ),
    **dict.fromkeys(("scaling", "otherwise", "between", "uncleared", "labels"), 0.8),
}
_STRICTER = {"labels": 1.2}  # times as far as is told: sites with doubtful cases look alike


@dataclass(frozen=True, eq=False)
class Weighed:
    """The clients of a federation, and how likely each is faulty; `kinds` are what their updates look like.

    `split` counts clients that look faulty against each other where those are most of them, else 0: then nobody can be
    compared. `is_inside` says that nearly all clients showed something from inside.
    """

    cohort: Cohort
    inside: InsideEvidence | None
    margins: InsideMargins | None
    probabilities: Array
    kinds: list[str]
    split: int
    is_inside: bool
    numbers: Mapping[str, Array]  # that were weighed; none where nobody can be compared

    def accused(self, alarm_rate: float = ALARM_RATE, probability: float = SURE_OF_UPDATES) -> list[ClientVerdict]:
        """Verdicts, the surest first; one per client.

        `alarm_rate` is the share of clean federations in which evidence from inside may accuse somebody. Updates alone
        accuse from this `probability` of the networks on.
        """
        cut = load_weights("inside").cut(alarm_rate)
        likely = [*self._by_rules(), *self._from(cut)] if self.is_inside else self._by_updates(probability)
        found = {one.client: one for one in sorted(likely, key=lambda one: one.probability)}
        for one in certain_on(self.cohort):
            known = found.get(one.client)
            if not _is_contradicted(one, self.inside, known):
                is_named = known is not None and known.kind != "unknown"  # the inside tells the cause
                kind = known.kind if known is not None and is_named else one.kind
                found[one.client] = replace(one, kind=kind, guilt="hostile" if known is None else known.guilt)
        return sorted(found.values(), key=lambda one: -one.probability)

    def remarks(self, alarm_rate: float = ALARM_RATE) -> list[ClientVerdict]:
        """Clients that are unlike the others, and not surely enough faulty to be accused."""
        accused = {one.client for one in self.accused(alarm_rate)}
        return [one for one in self._from(_WORTH_A_REMARK) if one.client not in accused]

    def _by_updates(self, probability: float) -> Iterator[ClientVerdict]:
        judged = [one for one in verdicts_on(self.cohort, probability) if not one.is_certain]
        apart = standing_apart(self.cohort, [one.client for one in judged])
        for one in judged:
            if apart[one.client] >= GAP:
                yield replace(one, probability=min(one.probability, _MOST_SURE_OF_UPDATES))

    def _by_rules(self) -> Iterator[ClientVerdict]:
        for place, client in enumerate(self.cohort.clients):
            if self.margins is not None and client in self.margins.clients and not self.split:
                at = self.margins.clients.index(client)
                kinds = self.margins.kinds
                broken = [rule for rule in _ALONE if rule in kinds and kinds[rule][at] >= _STRICTER.get(rule, 1.0)]
                if broken:
                    verdict = self._verdict(place)
                    yield replace(verdict, probability=max(verdict.probability, *(_ALONE[rule] for rule in broken)))

    def _from(self, limit: float) -> Iterator[ClientVerdict]:
        for place in np.argsort(-self.probabilities):
            if self.probabilities[place] >= limit:
                yield self._verdict(int(place))

    def _verdict(self, place: int) -> ClientVerdict:
        """What to call it: what a rule sees inside, else what its updates look like to the judge."""
        client, sure = self.cohort.clients[place], min(float(self.probabilities[place]), _MOST_SURE)
        if not self.is_inside or self.inside is None or self.margins is None or client not in self.margins.clients:
            return ClientVerdict(client, self.kinds[place], sure, self.cohort.rounds[0], None)
        if (named := named_in(self.margins, client)) is None:
            return ClientVerdict(client, "unknown", sure, self.cohort.rounds[0], None, guilt="buggy")
        first, last = span_of(self.inside, client, named.rule)
        target, source = named.pair or (None, None)
        return ClientVerdict(client, named.kind, sure, first, last, source, target, guilt="buggy")


def weigh(cohort: Cohort, inside: InsideEvidence | None = None) -> Weighed:
    """How likely each client of a federation is faulty, by all that is known of it."""
    if not cohort.clients:
        return Weighed(cohort, inside, None, np.zeros(0), [], 0, False, {})
    is_inside = _is_shown(inside, cohort.clients)
    harm = dict(zip(cohort.clients, loss_above_others(cohort.entry_loss).tolist(), strict=True))
    margins = inside_margins(inside, harm) if inside is not None else None
    chances, kinds = chances_on(cohort)
    split = _split(cohort, chances)
    likely, numbers = np.zeros(len(cohort.clients)), dict[str, Array]()
    if not split and clients_per_round(cohort) >= FEWEST_CLIENTS:
        numbers = numbers_of(cohort, chances, inside if is_inside else None)
        took_part = np.isfinite(cohort.norm).any(0) | (cohort.odd > 0).any(0)
        weights = load_weights("inside" if is_inside else "updates")
        likely = np.where(took_part, weights.probabilities(numbers), 0.0)
    return Weighed(cohort, inside, margins, likely, kinds, split, is_inside, numbers)


def weighed_in(window: Window) -> Mapping[str | None, Weighed]:
    """Each federation of a run, by its name; None where there is only one. `window.derive` makes it once for all."""
    inside = inside_of(window)
    return {name: weigh(cohort, inside.get(name or only_federation(window))) for name, cohort in cohorts_of(window)}


def _split(cohort: Cohort, chances: Array) -> int:
    """How many clients look faulty against each other where those are most of them, as masked updates do; else 0."""
    exact = {one.client for one in certain_on(cohort)}
    looks = sum(
        bool(chance >= SURE) for client, chance in zip(cohort.clients, chances, strict=True) if client not in exact
    )
    return verdicts_and_split(cohort, SURE)[1] if 2 * looks > len(cohort.clients) - len(exact) else 0


def _is_shown(inside: InsideEvidence | None, clients: Sequence[str]) -> bool:
    """Whether nearly all clients show their sending or their data."""
    if inside is None:
        return False
    shown = {client for client, turns in inside.turns.items() if any("way_sent" in facts for facts in turns.values())}
    shown |= {client for client in inside.data if inside.data[client]}
    return len(shown & set(clients)) >= _SHOWN * len(clients)


def _is_contradicted(one: ClientVerdict, inside: InsideEvidence | None, known: ClientVerdict | None) -> bool:
    """Whether a client that seems to send a copy, nothing, too much or NaN was seen to send what its optimizer did.

    Where a federation diverges, somebody's update is the first to be huge or to overflow: that one is at fault only if
    more is odd about it.
    """
    if inside is None or one.kind not in ("free-rider", "scaling", "nan"):
        return False
    if one.kind in ("scaling", "nan") and known is not None:
        return False
    if one.kind == "nan":
        return _is_of_training(inside, one) and not trains_otherwise(inside)[inside.clients.index(one.client)]
    ratios = list(_ratios(inside, one.client))
    return len(ratios) > 0 and float(np.median(np.abs(np.array(ratios) - 1))) < 0.05


def _is_of_training(inside: InsideEvidence, one: ClientVerdict) -> bool:
    """Whether all that was not finite in what a client first sent came out of its optimizer."""
    facts = inside.turns.get(one.client, {}).get(one.first, {})
    sent, way = facts.get("odd_sent"), facts.get("odd_way")
    return isinstance(sent, int | float) and isinstance(way, int | float) and sent <= way


def _ratios(inside: InsideEvidence, client: str) -> Iterator[float]:
    for facts in inside.turns.get(client, {}).values():
        sent, along = facts.get("sent_sent"), facts.get("way_sent")
        if isinstance(sent, int | float) and isinstance(along, int | float):
            yield along / sent if sent > 0 else 0.0
