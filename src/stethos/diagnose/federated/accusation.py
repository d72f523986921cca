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
from stethos.diagnose.federated.unlikeness import AT_TIMES
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
from stethos.diagnose.federated.weighing import EXPLAINS, OF_DATA, load_weights, numbers_of, terms_of
from stethos.diagnose.window import Window

Array = npt.NDArray[np.float64]
ALARM_RATE = 0.02  # of evidence from inside
SURE_OF_UPDATES = 0.99  # by the networks that judge updates, where nothing was seen inside
GAP = 5.0  # times as far from the median client as the second farthest of the others, too
_LIKELY_BY_UPDATES, _GAP_OF_LIKELY = 0.7, 3.0  # the same by all numbers of updates, weighed
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
_STRICTER = {"labels": 1.05}  # times as far as is told: sites with doubtful cases look alike
_SUPPORTED = {"labels": 0.18}  # probability by all that is weighed: of a class that few have, two may look like another
# Wrong labels move no column; where columns lie elsewhere, classes may do so, too. Nor do wrong targets: whose inputs
# lie elsewhere has another part of a curved relation, or another series.
_NEEDS_USUAL = {"labels": "scale", "targets": "place"}
_OF_TRAINING = ("update-noise", "labels")  # rules that another loss or optimizer explains
_TWICE = 2.0  # as likely, where two faulty clients may hide each other
# Numbers that accuse alone from so far on, what they are called, and the number that must be 1 beside them. No honest
# client of 383 federations came nearer than two thirds of that, where its samples lie where the others' do.
_FAR_ALONE = {
    "following": (2.0, "feature-fault", None), "mixed": (1.5, "label-noise", "labels"),
    "relabelled_at_times": (1.3, "label-noise", None),
}  # fmt: skip
_SURE_OF_NUMBERS = 0.9
# Numbers that show what is wrong, not what it does to training.
_KIND_OF = {
    "target-fault": ("relation", "level"), "label-noise": ("labels", "labels_once", "mixed", "relabelled"),
    "feature-fault": (
        "scale", "rescaled", "following", "joint", "link", "spread", "fixed", "order", "unknown", "lost",
    ),
    "duplicates": ("copies", "fewer", "repeats"), "wrong-lr": ("rate",), "stale": ("begin",), "nan": ("odd",),
    "unknown": ("rest", "sent", "by_gradient", "around_steps", "uncleared", "trained", "other", "more", "again"),
}  # fmt: skip
_KIND_OF_NUMBER = {name: kind for kind, names in _KIND_OF.items() for name in names}
_WORTH_A_NAME, _MOSTLY = 2.0, 0.7  # of the logarithm of the odds; of all that shows what is wrong
_SUSPECTED, _SURE_ALREADY, _MOST_COMPARED_AGAIN = 0.1, 0.9, 3  # probability; clients


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
    beside_all: Array  # probabilities where each client is compared with all others, also with who is suspected

    def accused(self, alarm_rate: float = ALARM_RATE, probability: float = SURE_OF_UPDATES) -> list[ClientVerdict]:
        """Verdicts, the surest first; one per client.

        `alarm_rate` is the share of clean federations in which evidence from inside may accuse somebody. Updates alone
        accuse from this `probability` of the networks on.
        """
        cut = load_weights("inside").cut(alarm_rate)
        likely = (
            [*self._by_rules(), *self._by_numbers(), *self._from(cut)]
            if self.is_inside
            else self._by_updates(probability)
        )
        found = {one.client: one for one in sorted(likely, key=lambda one: one.probability)}
        for one in certain_on(self.cohort):
            known = found.get(one.client)
            if not _is_contradicted(one, self.inside, known):
                is_named = known is not None and known.guilt == "buggy" and known.kind != "unknown"  # tells the cause
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
        told = [one for one in judged if apart[one.client] >= GAP]
        for one in told:
            yield replace(one, probability=min(one.probability, _MOST_SURE_OF_UPDATES))
        weighed = [self._verdict(int(place)) for place in np.flatnonzero(self.probabilities >= _LIKELY_BY_UPDATES)]
        apart = standing_apart(self.cohort, [one.client for one in weighed])
        for one in weighed:
            if apart[one.client] >= _GAP_OF_LIKELY and all(one.client != other.client for other in told):
                yield replace(one, probability=min(one.probability, _MOST_SURE_OF_UPDATES))

    def _by_rules(self) -> Iterator[ClientVerdict]:
        for place, client in enumerate(self.cohort.clients):
            if self.margins is not None and client in self.margins.clients and not self.split:
                at = self.margins.clients.index(client)
                kinds = self.margins.kinds
                broken = [
                    rule for rule in _ALONE
                    if rule in kinds and kinds[rule][at] >= _STRICTER.get(rule, 1.0)
                    and self._is_supported(place, rule)
                ]  # fmt: skip
                if broken:
                    verdict = self._verdict(place)
                    yield replace(verdict, probability=max(verdict.probability, *(_ALONE[rule] for rule in broken)))

    def _is_supported(self, place: int, rule: str) -> bool:
        """Whether enough else is odd about a client, beside all others or beside those who are not suspected."""
        if rule in _NEEDS_USUAL and self._number(_NEEDS_USUAL[rule], place) >= EXPLAINS:
            return False
        least = _SUPPORTED.get(rule, 0.0)
        return bool(self.beside_all[place] >= least or self.probabilities[place] >= _TWICE * least)

    def _number(self, name: str, place: int) -> float:
        return float(self.numbers[name][place]) if name in self.numbers else 0.0

    def _by_numbers(self) -> Iterator[ClientVerdict]:
        for place in range(len(self.cohort.clients)):
            if self._far_alone(place) is not None:
                verdict = self._verdict(place)
                yield replace(verdict, probability=max(verdict.probability, _SURE_OF_NUMBERS))

    def _far_alone(self, place: int) -> str | None:
        """The kind of fault that a single number shows; of whose samples lie elsewhere none can."""
        if not self.numbers or self.numbers["elsewhere"][place] >= 1.0:
            return None
        for name, (least, kind, beside) in _FAR_ALONE.items():
            if self.numbers[name][place] >= least and (beside is None or self.numbers[beside][place] >= 1.0):
                return kind
        return None

    def _kind_by_numbers(self, place: int) -> str:
        """The kind that most of what weighs against a client is of, where no rule sees any; symptoms say none."""
        weighs = dict.fromkeys(_KIND_OF, 0.0)
        for name, slopes in load_weights("inside").slopes.items():
            kind = _KIND_OF_NUMBER.get(name.removesuffix(AT_TIMES))
            if kind is not None and name in self.numbers:
                weighs[kind] += max(float((terms_of(name, self.numbers[name][[place]]) @ slopes)[0]), 0.0)
        most = max(weighs, key=lambda kind: weighs[kind])
        is_plain = weighs[most] >= _WORTH_A_NAME and weighs[most] >= _MOSTLY * sum(weighs.values())
        return most if is_plain else "unknown"

    def _from(self, limit: float) -> Iterator[ClientVerdict]:
        for place in np.argsort(-self.probabilities):
            if self.probabilities[place] >= limit:
                yield self._verdict(int(place))

    def _verdict(self, place: int) -> ClientVerdict:
        """What to call it: what a rule sees inside, else what its updates look like to the judge."""
        client, sure = self.cohort.clients[place], min(float(self.probabilities[place]), _MOST_SURE)
        if not self.is_inside or self.inside is None or self.margins is None or client not in self.margins.clients:
            is_judged = bool(self.numbers and self.numbers["judged"][place] > 0)  # more likely faulty than not
            kind = self.kinds[place] if is_judged else "unknown"
            return ClientVerdict(client, kind, sure, self.cohort.rounds[0], None)
        if (named := named_in(self.margins, client)) is None:
            kind = self._far_alone(place) or self._kind_by_numbers(place)
            return ClientVerdict(client, kind, sure, self.cohort.rounds[0], None, guilt="buggy")
        if named.rule in _OF_TRAINING and self._number("other", place) >= 1.0:
            return ClientVerdict(client, "unknown", sure, self.cohort.rounds[0], None, guilt="buggy")
        first, last = span_of(self.inside, client, named.rule)
        target, source = named.pair or (None, None)
        return ClientVerdict(client, named.kind, sure, first, last, source, target, guilt="buggy")


def weigh(cohort: Cohort, inside: InsideEvidence | None = None) -> Weighed:
    """How likely each client of a federation is faulty, by all that is known of it."""
    if not cohort.clients:
        return Weighed(cohort, inside, None, np.zeros(0), [], 0, False, {}, np.zeros(0))
    is_inside = _is_shown(inside, cohort.clients)
    harm = dict(zip(cohort.clients, loss_above_others(cohort.entry_loss).tolist(), strict=True))
    margins = inside_margins(inside, harm) if inside is not None else None
    chances, kinds = chances_on(cohort)
    split = _split(cohort, chances)
    first, numbers = np.zeros(len(cohort.clients)), dict[str, Array]()
    is_compared = clients_per_round(cohort) >= FEWEST_CLIENTS
    if not split and (is_compared or (is_inside and len(cohort.clients) >= FEWEST_CLIENTS)):
        numbers = numbers_of(cohort, chances, inside if is_inside else None)
        if not is_compared:  # data are compared across rounds
            numbers = {name: values if name in OF_DATA else np.zeros_like(values) for name, values in numbers.items()}
        took_part = np.isfinite(cohort.norm).any(0) | (cohort.odd > 0).any(0)
        weights = load_weights("inside" if is_inside else "updates")
        first = np.where(took_part, weights.probabilities(numbers), 0.0)
    likely = _without_suspects(cohort, chances, inside, first) if is_inside else first
    return Weighed(cohort, inside, margins, likely, kinds, split, is_inside, numbers, first)


def _without_suspects(cohort: Cohort, chances: Array, inside: InsideEvidence | None, likely: Array) -> Array:
    """Probabilities where nobody who may be faulty is what a client is compared with.

    Two faulty clients hide each other: each is the farthest that the other has beside it. So who is suspected, and not
    yet surely faulty, is compared once more, with those who are not suspected.
    """
    order = [int(place) for place in np.argsort(-likely, kind="stable") if likely[place] >= _SUSPECTED]
    most = max(1, len(likely) // 4)
    found = likely.copy()
    for place in [one for one in order if likely[one] < _SURE_ALREADY][:_MOST_COMPARED_AGAIN]:
        others = {one for one in order if one != place}
        left = sorted(set(range(len(likely))) - set([one for one in order if one in others][:most]))
        if inside is None or not others or len(left) < FEWEST_CLIENTS + 1:
            continue
        known = {cohort.clients[one] for one in left}
        rest = inside.only([at for at, one in enumerate(inside.clients) if one in known])
        numbers = numbers_of(_only(cohort, left), chances[left], rest)
        found[place] = max(found[place], load_weights("inside").probabilities(numbers)[left.index(place)])
    return found


def _only(cohort: Cohort, places: Sequence[int]) -> Cohort:
    """Some of the clients, over the same rounds."""
    values = {name: value[:, np.array(places)] for name, value in cohort.values.items()}
    return Cohort(cohort.rounds, tuple(cohort.clients[place] for place in places), values)


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
