"""FED001: faulty clients, with the kind of fault named."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from stethos.diagnose.detector import CannotTell
from stethos.diagnose.federated import inside_evidence
from stethos.diagnose.federated.accusation import SURE_OF_UPDATES, accusations_in
from stethos.diagnose.federated.cohort import NEEDS, READS, Cohort, cohorts_of
from stethos.diagnose.federated.inside import InsideMargins
from stethos.diagnose.federated.inside_evidence import InsideEvidence, inside_of
from stethos.diagnose.federated.verdict import FEWEST_CLIENTS, ClientVerdict, clients_per_round, clients_without_peers
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.window import Window
from stethos.outlier import deviations
from stethos.store.literal import literal

# kind: in words, which matrix shows it, its label, what to do
_KINDS: dict[str, tuple[str, str, str, str]] = {
    "nan": ("sends NaN or infinite weights", "odd", "NaN or infinite elements", "reject its update; look for a division by zero or half precision in its training"),  # noqa: E501
    "free-rider": ("sends updates without training", "cos_last", "cosine to the last global change", "leave it out; check that its training runs"),  # noqa: E501
    "label-flip": ("has labels of one class flipped", "entry_loss", "loss of the incoming model on its data", "have it check the labels of these classes; leave it out until then"),  # noqa: E501
    "label-noise": ("has wrong labels", "entry_loss", "loss of the incoming model on its data", "have it check its labels; leave it out until then"),  # noqa: E501
    "feature-fault": ("has noisy or shifted inputs", "input_cos", "similarity of its inputs' use to the others'", "have it check its preprocessing (scaling, sensor, missing values)"),  # noqa: E501
    "backdoor": ("trains towards one class on some inputs, like a backdoor", "input_focus", "share of the change in a single input", "leave it out and look for a trigger in its data; retrain from before its first round"),  # noqa: E501
    "sign-flip": ("sends its update with the sign turned", "cos_centre", "cosine to the other clients", "leave it out; check how it computes what it sends (new minus old)"),  # noqa: E501
    "scaling": ("sends its update much too large", "norm_ratio", "size relative to the median client", "clip or normalise its update; check the weighting by samples"),  # noqa: E501
    "update-noise": ("sends noise on top of its update", "cos_self", "cosine to its own last update", "check its privacy noise, compression or transport"),  # noqa: E501
    "wrong-lr": ("trains with another learning rate than the others", "norm_ratio", "size relative to the median client", "have it check its training settings"),  # noqa: E501
    "duplicates": ("trains on the same few samples again and again", "entry_loss", "loss of the incoming model on its data", "have it check how it loads its data"),  # noqa: E501
    "target-fault": ("has targets in other units, or unrelated to its inputs", "entry_loss", "loss of the incoming model on its data", "have it check what its model is to predict, and in which units"),  # noqa: E501
    "unknown": ("trains unlike the others; the kind of fault is unknown", "norm_ratio", "size relative to the median client", "compare its training code, loss and optimizer with another client's"),  # noqa: E501
    "stale": ("starts from an old global model", "cos_back", "cosine to the way back to an older model", "check that it receives the current model, and whether it is late"),  # noqa: E501
}  # fmt: skip

_UNKNOWN_CLASSES = (
    "have it check its labels, unless it alone holds a class: `site.confusion(labels, answers)` tells which"
)
_WORTH_SAYING = 0.6
_OF_ALL = {"nan": "send NaN or infinite weights", "free-rider": "send updates without training"}
_LABELS = {
    **{column: label for _, column, label, _ in _KINDS.values()},
    "sign_agreement": "elements that move as the others' do",
    "exit_loss": "loss after its training",
    "zero_share": "share of weights it leaves alone",
}


@dataclass(frozen=True, slots=True)
class FaultyClient:
    """A client's updates, or its data, are not what they should be, and the kind of fault can be named.

    What it looks at: fingerprints of updates (size, direction, spread over layers and inputs) against the robust
    centre of the other clients and against the past; the incoming global model's loss and answers on the client's own
    labels. Label by label, so that a client with other classes than the rest is not mistaken for a faulty one.
    Why it matters: one client in fifty with flipped labels teaches the global model the wrong thing, and no loss curve
    shows it.
    Not a fault when: the client alone holds a class, or has very few samples. Compare label-skew; where clients hardly
    have labels in common, faults of data are told only of those who do. More than three clients in ten with the same
    fault become the majority that others are compared with.
    Next step: `stethos diagnose --client CLIENT`, then `stethos compare-clients CLIENT OTHER`; leave it out of the
    average until it is fixed.
    """

    code: ClassVar[str] = "FED001"
    name: ClassVar[str] = "faulty-client"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Mapping[str, frozenset[str]]] = NEEDS
    reads: ClassVar[Mapping[str, frozenset[str]]] = {**READS, **inside_evidence.READS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {
            "non-finite-loss", "non-finite-gradients", "non-finite-weights", "divergence", "oscillation", "plateau",
            "slow-progress", "weight-explosion", "exploding-gradients", "aggregation-bias", "server-instability",
            "series-anomaly", "update-to-weight-ratio", "client-anomaly", "non-finite-model",
        }
    )  # fmt: skip

    probability: float = SURE_OF_UPDATES  # to accuse on updates alone
    alarm_rate: float = 0.01  # share of clean federations in which evidence from inside may accuse somebody

    def check(self, window: Window) -> Iterator[Finding]:
        reasons: list[CannotTell] = []
        is_any = False
        inside = inside_of(window)
        for federation, cohort in cohorts_of(window):
            try:
                for finding in self._findings(federation, cohort, inside.get(federation or _only_one(window))):
                    is_any = True
                    yield finding
            except CannotTell as reason:
                reasons.append(reason)
            else:
                is_any = True
        if not is_any:
            raise reasons[0]

    def _findings(
        self, federation: str | None, cohort: Cohort, inside: InsideEvidence | None = None
    ) -> Iterator[Finding]:
        if not cohort.clients:
            raise CannotTell("no updates of clients were recorded")
        if not np.isfinite(cohort.norm).any() and not (cohort.odd > 0).any():
            raise CannotTell("`updates.norm` was not recorded")
        accused = accusations_in(cohort, inside, self.probability, self.alarm_rate)
        verdicts, split = accused.verdicts, accused.split
        for kind in dict.fromkeys(one.kind for one in verdicts if one.is_certain):
            alike = [one for one in verdicts if one.is_certain and one.kind == kind]
            if len(alike) == len(cohort.clients) > 1:
                yield self._common(federation, cohort, alike)
                verdicts = [one for one in verdicts if one not in alike]
        for verdict in verdicts:
            yield self._finding(cohort, verdict, federation, accused.margins)
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
            title=f"all {len(verdicts)} clients{_of(federation)} {_OF_ALL[one.kind]}",
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
        words, _, _, todo = _KINDS[verdict.kind]
        if verdict.source is not None:
            words = f"has class {verdict.source} labelled as {verdict.target}"
        elif verdict.kind == "label-flip":
            todo = _UNKNOWN_CLASSES
        detail: dict[str, Any] = {"guilt": verdict.guilt}
        if verdict.source is not None:
            detail |= {"source": verdict.source, "target": verdict.target}
        shown = _shown_inside(margins, verdict, federation) if margins is not None else ()
        return Finding(
            code=self.code,
            name=self.name,
            kind=verdict.kind,
            severity=self.severity,
            title=f"client {verdict.client}{_of(federation)} {words}",
            subject=Subject((verdict.client,), first=verdict.first, last=verdict.last, federation=federation),
            confidence=min(verdict.probability, 0.99),
            evidence=(*shown, *_evidence(cohort, verdict, federation)),
            next_step=todo,
            detail=detail,
            is_open=verdict.last is None,
        )


def _only_one(window: Window) -> str | None:
    """The name of a run's only federation."""
    updates = window.frame("updates")
    names = updates["federation"].tolist() if "federation" in updates else []
    return next((str(name) for name in names if isinstance(name, str)), None)


def _of(federation: str | None) -> str:
    return "" if federation is None else f" of {federation}"


_SHOWN_INSIDE = {
    "nan": "NaN or infinite numbers appear between its training and what it sends",
    "free-rider": "what it sends is not what its optimizer did",
    "sign-flip": "what it sends points against what its optimizer did",
    "scaling": "what it sends is larger than what its optimizer did",
    "update-noise": "what it sends holds more than what its optimizer did",
    "stale": "its training does not begin at the global model that it was given",
    "wrong-lr": "its learning rate is not the others'",
    "duplicates": "its batches repeat the same samples",
    "not-finite": "its inputs hold NaN or infinite numbers",
    "target-units": "its targets are on another scale",
    "units": "one of its inputs is on another scale",
    "unnormalised": "many of its inputs are on another scale or shifted",
    "constant": "inputs that vary elsewhere are always the same",
    "fewer-words": "it has few of the words that others have most, and few common words of its own",
    "imputed": "many of its inputs share a value that others do not have",
    "atoms": "some of its samples share a value that others do not have",
    "grain": "values that are common at the others are not at it",
    "noise": "its inputs do not follow from each other as the others' do",
    "targets": "its targets do not follow from its inputs as the others' do",
    "relabelled": "the same samples came with other labels than before",
    "labels": "its samples look like other classes than their labels say",
    "partly": "it sends only a part of what its optimizer did",
    "uncleared": "gradients of the step before are still there when the next is computed",
    "untrained": "it trains fewer of the model's weights than the others",
    "ascent": "the loss on its own samples rises as it trains, while the others' falls",
    "turned": "its gradients point elsewhere when its optimizer steps than when they were computed",
    "between": "something else than its optimizer changes its weights between steps",
    "otherwise": "its loss is computed by other operations than the others'",
    "early": "it makes far fewer, or more, steps than the others",
    "training": "its steps are far longer than the others', for its learning rate",
}


def _shown_inside(margins: InsideMargins, verdict: ClientVerdict, federation: str | None) -> Iterator[Evidence]:
    """What stands out inside of the client, the farthest first."""
    if verdict.client not in margins.clients:
        return
    place = margins.clients.index(verdict.client)
    far = sorted(((float(values[place]), name) for name, values in margins.kinds.items()), reverse=True)
    where = "" if federation is None else f" AND federation = {literal(federation)}"
    sql = f"SELECT round, kind, value FROM evidence WHERE client = {literal(verdict.client)}{where} ORDER BY round"
    for margin, name in far[:2]:
        if margin >= _WORTH_SAYING:
            yield Evidence(f"{_SHOWN_INSIDE[name]} ({margin:.1f} times as far apart as accuses)", sql)


def _evidence(cohort: Cohort, verdict: ClientVerdict, federation: str | None) -> Iterator[Evidence]:
    """The quantity that shows the kind, then the two in which the client stands out most."""
    if verdict.client not in cohort.clients:  # it trained, but nothing came of it
        return
    place = cohort.clients.index(verdict.client)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing are NaN
        shown = _KINDS[verdict.kind][1]
        if shown == "cos_last" and np.nanmean(cohort.zero_share[:, place]) > 0.5:
            shown = "zero_share"  # it copies nothing, it sends zeros
        apart = {column: _apart(getattr(cohort, column), place) for column in _LABELS}
        listed = sorted(
            (column for column in _LABELS if column not in (shown, "odd")), key=lambda column: -apart[column]
        )
        for column in (shown, *listed[:2]):
            values = getattr(cohort, column)
            own, typical = values[:, place], np.nanmedian(np.delete(values, place, axis=1), axis=1)
            if np.isfinite(own).any():
                mine, rest = float(np.nanmean(own)), float(np.nanmean(typical))
                yield Evidence(
                    f"{_LABELS[column]}: {mine:.3g}, the others {rest:.3g}",
                    _sql(column, verdict.client, federation),
                    tuple(own.tolist()),
                    tuple(typical.tolist()),
                )


def _apart(values: np.ndarray[Any, np.dtype[np.float64]], place: int) -> float:
    """How far a client's mean is from the median client's, in robust standard deviations."""
    distance = abs(float(deviations(np.nanmean(values, axis=0), 1e-9)[place]))
    return distance if math.isfinite(distance) else 0.0


def _sql(column: str, client: str, federation: str | None) -> str:
    own = literal(client)
    if column in ("entry_loss", "exit_loss"):
        table, where = "client_rounds", ""
    else:
        table, where = "updates", " AND layer IS NULL"
    if federation is not None:
        where += f" AND federation = {literal(federation)}"
    value = "nan + inf" if column == "odd" else column
    return (
        f"SELECT round, any_value({value}) FILTER (client = {own}) AS client, "
        f"median({value}) FILTER (client <> {own}) AS others "
        f"FROM {table} WHERE client IS NOT NULL{where} GROUP BY round ORDER BY round"
    )
