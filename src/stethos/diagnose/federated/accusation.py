"""Whom a federation's evidence accuses, all of it together.

What clients show from inside decides where it is there. Updates alone are judged where it is not, or where a client
keeps it to itself while the others do not: with more doubt, since the networks that judge them know only federations
of the lab.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stethos.diagnose.federated.cohort import Cohort
from stethos.diagnose.federated.inside import InsideMargins, inside_margins, inside_verdicts, loss_above_others
from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.inside_update import trains_otherwise
from stethos.diagnose.federated.verdict import OF_DATA, ClientVerdict, certain_on, standing_apart, verdicts_and_split

SURE_OF_UPDATES = 0.99  # on updates alone
GAP = 5.0  # times as far from the median client as the second farthest of the others
_MOST_SURE = 0.75  # that updates alone can make us: the share that is right outside of the lab
_SHOWN = 0.8  # of the clients: then a federation is judged from inside


@dataclass(frozen=True, eq=False)
class Accusations:
    """`split` counts clients that look faulty against each other where those are most of them, else 0."""

    verdicts: list[ClientVerdict]
    split: int
    margins: InsideMargins | None


def accusations_in(cohort: Cohort, inside: InsideEvidence | None, probability: float, alarm_rate: float) -> Accusations:
    """All verdicts on the clients of a federation, the surest first; one per client."""
    harm = dict(zip(cohort.clients, loss_above_others(cohort.entry_loss).tolist(), strict=True))
    margins = inside_margins(inside, harm) if inside is not None else None
    buggy = inside_verdicts(inside, margins, alarm_rate) if inside is not None and margins is not None else []
    found = {one.client: one for one in buggy}
    for one in certain_on(cohort):
        known = found.get(one.client)
        if not _is_contradicted(one, inside, known):
            is_named = known is not None and known.kind != "unknown"  # the inside tells the cause
            kind = known.kind if known is not None and is_named else one.kind
            found[one.client] = replace(one, kind=kind, guilt="hostile" if known is None else "buggy")
    judged, split = verdicts_and_split(cohort, probability)
    sending, data = _who_shows(inside, cohort.clients)
    apart = standing_apart(cohort)
    for one in judged:
        is_apart = apart[cohort.clients.index(one.client)] >= GAP
        is_seen = one.client in (data if one.kind in OF_DATA else sending)
        if one.client not in found and is_apart and not is_seen and not one.is_certain:
            found[one.client] = replace(one, probability=min(one.probability, _MOST_SURE))
    return Accusations(sorted(found.values(), key=lambda one: -one.probability), split, margins)


def _who_shows(inside: InsideEvidence | None, clients: Sequence[str]) -> tuple[set[str], set[str]]:
    """Clients whose sending, and whose data, were seen; nobody where that is few of them."""
    if inside is None:
        return set(), set()
    sending = {client for client, turns in inside.turns.items() if any("way_sent" in facts for facts in turns.values())}
    data = {client for client in inside.data if inside.data[client]}
    few = _SHOWN * len(clients)
    return sending if len(sending & set(clients)) >= few else set(), data if len(data & set(clients)) >= few else set()


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
