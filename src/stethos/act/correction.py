"""Corrections of a federated training: what to do about the updates of a round, before they are averaged.

A policy proposes; three things hold it back. Evidence: what is exact (a NaN, a
size that no other client comes near) counts at once, a judgement counts
when it was made in several rounds. Bounds: never more than a share of the
clients or of their weight. Rate: few new actions in a round, few rollbacks in a run. All of it is
recorded, also what was held back, and can be undone.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.act.action import Action, CorrectionLimits, Mode, Treatment, What
from stethos.act.rollback import RollbackRule
from stethos.diagnose.federated.verdict import FEWEST_CLIENTS, ClientVerdict, verdicts_on
from stethos.federate.comparison import Facts
from stethos.federate.screening import Screened, Screening
from stethos.federate.site import Update
from stethos.federate.structure import State
from stethos.outlier import PLAIN_DEVIATIONS, PLAIN_TIMES, deviations

Vector = npt.NDArray[Any]

# What is done about a kind of fault: leave the client out, weigh it down, or nothing beyond the clipping of its size.
POLICIES: dict[str, tuple[What, float]] = {
    "sign-flip": ("quarantine", 0.0),
    "label-flip": ("quarantine", 0.0),
    "label-noise": ("quarantine", 0.0),
    "backdoor": ("quarantine", 0.0),
    "free-rider": ("quarantine", 0.0),
    "stale": ("quarantine", 0.0),
    "feature-fault": ("down-weight", 0.75),
    "update-noise": ("clip-update", 1.0),
    "scaling": ("clip-update", 1.0),
}
_LEAST_SPREAD = 0.15  # of the logarithm of sizes
_PASSED = 3  # rounds without a sign of it, until an action is over


@dataclass(slots=True)
class Correction:
    """What to do in a round: treatments by client, and whether the average gives way to a robust one.

    `is_applied` is False in a dry run: then everything stays as it was sent.
    """

    treatments: dict[str, Treatment] = field(default_factory=dict)
    is_robust: bool = False
    is_applied: bool = True

    def of(self, client: str) -> Treatment:
        return self.treatments.get(client, Treatment()) if self.is_applied else Treatment()


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a policy wants to do about a client, and why."""

    what: What
    client: str
    kind: str
    treatment: Treatment
    reason: str
    evidence: Mapping[str, Any]
    strength: float


class Corrector:
    """Decides about the updates of round after round; `tell` is given every action as it begins, goes on and ends.

    `undone` names actions that a person has taken back; it is asked once a round.
    """

    def __init__(
        self, mode: Mode, *, limits: CorrectionLimits = CorrectionLimits(),
        tell: Callable[[Action], None] | None = None,
        undone: Callable[[], set[int]] | None = None,
    ) -> None:  # fmt: skip
        self.mode = mode
        self.limits = limits
        self._tell = tell or (lambda action: None)
        self._undone = undone or set
        self._screening = Screening()
        self._accused: dict[str, deque[tuple[int, ClientVerdict]]] = defaultdict(deque)
        self._active: dict[tuple[What, str | None], Action] = {}
        self._spared: set[tuple[What, str | None]] = set()  # undone by a person: not begun again
        self._seen = 0
        self._rollback_rule = RollbackRule()
        self._rollbacks = 0
        self.actions: list[Action] = []

    def review(self, number: int, base: State, updates: Sequence[Update], facts: Facts | None = None) -> Correction:
        """What to do about the updates of round `number`, for a server that no `Federation` records.

        `base` is the global model it began with; `facts` by client: what it reports of its training (`entry_loss`,
        `exit_loss`, `confusion`).
        """
        if self.mode == "off" or not updates:
            return Correction(is_applied=self.mode == "on")
        with np.errstate(all="ignore"):
            screened = self._screening.screen(number, base, updates, facts or {})
        return self.decide(screened)

    def decide(self, screened: Screened) -> Correction:
        """What to do about the updates of a round."""
        made, number = Correction(is_applied=self.mode == "on"), screened.number
        if self.mode == "off":
            return made
        self._take_back(number)
        with np.errstate(all="ignore"):
            proposals = [*_odd(screened), *_too_large(screened), *self._judged(number, screened)]
            chosen = self._bounded(number, proposals, screened)
            for one in chosen:
                known = made.treatments.get(one.client, Treatment())
                made.treatments[one.client] = Treatment(
                    min(known.weight, one.treatment.weight), min(known.scale, one.treatment.scale)
                )
            self._decide_average(number, screened, made)
            self._record(number, chosen, screened, made)
        return made

    def settle(self, number: int, *, odd: int, loss: float | None, drift: float | None) -> bool:
        """Whether the new global model must give way to the last good one; False in a dry run, whatever it says.

        `odd` counts its elements that are not finite, `drift` is the length of its last change.
        """
        if self.mode == "off":
            return False
        complaint = self._rollback_rule.complaint(odd=odd, loss=loss, drift=drift)
        if not complaint or ("roll-back", None) in self._spared:
            return False
        action = self._new("roll-back", number, complaint)
        action.evidence = {"odd": odd, "loss": loss, "drift": drift}
        self._rollbacks += 1
        if self._rollbacks > self.limits.rollbacks:
            action.state, action.effect = "refused", f"there were {self.limits.rollbacks} rollbacks before"
        else:
            action.effect = "the next round begins with the last good global model"
            if self.mode == "dry-run":
                action.effect = "would have begun the next round with the last good global model"
        self._tell(action)
        return action.state == "active"

    def refuse_last(self, why: str) -> None:
        """The last action could not be carried out after all."""
        action = self.actions[-1]
        action.state, action.effect = "refused", why
        self._tell(action)

    # Evidence --------------------------------------------------------------------------------------

    def _judged(self, number: int, screened: Screened) -> list[Proposal]:
        """Clients that several rounds' screenings accuse."""
        self._seen += 1
        for verdict in verdicts_on(screened.cohort, self.limits.probability):
            if verdict.client in screened.clients and verdict.last is None and verdict.kind != "nan":
                self._accused[verdict.client].append((self._seen, verdict))
        found = []
        for client in screened.clients:
            recent = self._accused[client]
            while recent and recent[0][0] <= self._seen - self.limits.within:
                recent.popleft()
            if len(recent) >= self.limits.agree:
                found.append(_proposal(recent[-1][1], len(recent), screened))
        return found

    # Bounds ----------------------------------------------------------------------------------------

    def _bounded(self, number: int, proposals: Sequence[Proposal], screened: Screened) -> list[Proposal]:
        """The proposals that stay within the limits, the gravest first; the others are recorded as refused."""
        clients = len(screened.clients)
        weight_of = dict(zip(screened.clients, screened.samples / screened.samples.sum(), strict=True))
        most = max(1, math.floor(self.limits.clients * clients + 1e-9))
        most_new = max(1, math.floor(self.limits.new_per_round * clients + 1e-9))
        touched: set[str] = set()
        new: set[str] = set()
        weight = 0.0
        chosen = []
        for one in sorted(proposals, key=lambda one: -one.strength):
            if (one.what, one.client) in self._spared:
                continue
            is_new = (one.what, one.client) not in self._active and one.what != "drop-update"
            loss = weight_of[one.client] * (1 - one.treatment.weight)
            is_exact = one.what == "drop-update"  # it would spoil everything: no bound helps the others
            if not is_exact and (
                (one.client not in touched and len(touched) >= most)
                or (is_new and one.client not in new and len(new) >= most_new)
                or weight + loss > self.limits.weight
            ):
                self._refuse(number, one)
                continue
            touched.add(one.client)
            weight += loss
            if is_new:
                new.add(one.client)
            chosen.append(one)
        return chosen

    def _refuse(self, number: int, one: Proposal) -> None:
        key = (one.what, one.client)
        if not any((known.what, known.client) == key and known.state == "refused" for known in self.actions):
            action = self._new(one.what, number, f"{one.reason}; held back by the bounds", one.client, one.kind)
            action.state, action.evidence = "refused", one.evidence
            self._tell(action)

    def _decide_average(self, number: int, screened: Screened, made: Correction) -> None:
        """Too many are accused to name them all: a robust aggregate, while that lasts."""
        accused = {client for client, recent in self._accused.items() if len(recent) >= self.limits.agree}
        spared = {client for _, client in self._spared}
        left = [one for one in (accused - spared) & set(screened.clients) if made.treatments.get(one) is None]
        key: tuple[What, None] = ("robust-aggregate", None)
        if left and len(screened.clients) >= FEWEST_CLIENTS and key not in self._spared:
            made.is_robust = True
            reason = f"{len(accused)} clients are accused, more than may be left out"
            action = self._continue(key, number) or self._begin(key, number, reason)
            action.evidence = {"accused": sorted(accused)}

    # Actions ---------------------------------------------------------------------------------------

    def _new(self, what: What, number: int, reason: str, client: str | None = None, kind: str = "") -> Action:
        state = "active" if self.mode == "on" else "proposed"
        action = Action(len(self.actions) + 1, what, self.mode, state, reason, number, number, client, kind)  # type: ignore[arg-type]
        self.actions.append(action)
        return action

    def _begin(self, key: tuple[What, str | None], number: int, reason: str, kind: str = "") -> Action:
        action = self._active[key] = self._new(key[0], number, reason, key[1], kind)
        return action

    def _continue(self, key: tuple[What, str | None], number: int) -> Action | None:
        action = self._active.get(key)
        if action is not None:
            action.last, action.times = number, action.times + 1
        return action

    def _record(self, number: int, chosen: Sequence[Proposal], screened: Screened, made: Correction) -> None:
        before = _length(screened, Correction())
        after = _length(screened, Correction(made.treatments))
        for one in chosen:
            key = (one.what, one.client)
            action = self._continue(key, number)
            if action is None:
                action = self._begin(key, number, one.reason, one.kind)
                action.norm_before, action.norm_after = before, after
                action.effect = _effect(one, before, after, is_applied=made.is_applied)
            action.evidence = one.evidence
        for place, action in list(self._active.items()):
            if action.last == number:
                self._tell(action)
            elif (action.client is None or action.client in screened.clients) and number - action.last >= (
                1 if action.what == "drop-update" else _PASSED
            ):
                del self._active[place]
                if action.state == "active":
                    action.state = "over"
                    self._tell(action)

    def _take_back(self, number: int) -> None:
        for action in self.actions:
            if action.number in (undone := self._undone()) and action.state in ("active", "proposed", "over"):
                key = (action.what, action.client)
                self._spared.add(key)
                self._active.pop(key, None)
                action.state, action.last = "undone", number
                self._tell(action)
            if not undone:
                break


def _odd(screened: Screened) -> list[Proposal]:
    """NaN or infinity in an update would be in the average: exact."""
    return [
        Proposal(
            "drop-update", client, "nan", Treatment(weight=0.0),
            f"{int(odd)} elements of its update are NaN or infinite", {"odd": int(odd)}, 3.0,
        )
        for client, odd in zip(screened.clients, screened.odd, strict=True)
        if odd
    ]  # fmt: skip


def _too_large(screened: Screened) -> list[Proposal]:
    """A size far beyond every other one, by factor and by spread: two robust measures over the clients."""
    is_known = screened.is_finite & (screened.norms > 0)
    if is_known.sum() < FEWEST_CLIENTS:
        return []
    logs = np.log(np.where(is_known, screened.norms, np.nan))
    ratios = np.exp(logs - np.nanmedian(logs)).tolist()
    found = []
    for client, times, away in zip(screened.clients, ratios, deviations(logs, _LEAST_SPREAD).tolist(), strict=True):
        if times > PLAIN_TIMES and away > PLAIN_DEVIATIONS:
            found.append(
                Proposal(
                    "clip-update", client, "scaling", Treatment(scale=1 / times),
                    f"its update is {times:.1f} times as large as the median client's, "
                    f"{away:.1f} deviations beyond the spread of the others",
                    {"norm_ratio": round(times, 3), "deviations": round(away, 2)}, 2.0,
                )
            )  # fmt: skip
    return found


def _proposal(verdict: ClientVerdict, rounds: int, screened: Screened) -> Proposal:
    what, weight = POLICIES.get(verdict.kind, ("quarantine", 0.0))
    place = screened.clients.index(verdict.client)
    middle = float(np.median(screened.norms[screened.is_finite])) if screened.is_finite.any() else 0.0
    scale = min(1.0, middle / screened.norms[place]) if what == "clip-update" and screened.norms[place] > 0 else 1.0
    return Proposal(
        what, verdict.client, verdict.kind, Treatment(weight, scale),
        f"{verdict.kind}: screened out in {rounds} rounds, the last time {100 * verdict.probability:.0f} % sure, "
        f"since round {verdict.first}",
        {"kind": verdict.kind, "probability": round(verdict.probability, 4), "rounds": rounds, "since": verdict.first},
        verdict.probability,
    )  # fmt: skip


def _length(screened: Screened, correction: Correction) -> float:
    """The length of the average change, from sketches; NaN where an update in it is not finite."""
    treatments = [correction.of(client) for client in screened.clients]
    weights = screened.samples * [one.weight for one in treatments]
    if not weights.sum():
        return 0.0
    if (weights > 0)[~screened.is_finite].any():
        return math.nan
    change = (weights * [one.scale for one in treatments] / weights.sum()) @ screened.sketches
    return float(np.linalg.norm(change))


def _effect(one: Proposal, before: float, after: float, *, is_applied: bool) -> str:
    would = "" if is_applied else "would have "
    done = {
        "drop-update": f"{would}left this update out",
        "clip-update": f"{would}shortened it to {100 * one.treatment.scale:.0f} %",
        "quarantine": f"{would}left the client out of the average",
        "down-weight": f"{would}weighed the client down to {100 * one.treatment.weight:.0f} %",
    }[one.what]
    return f"{done}; length of the average change {before:.3g} -> {after:.3g}"
