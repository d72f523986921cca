"""What shows that a client is unlike the others, in words and as queries, and what kinds of faults are called."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from stethos.diagnose.federated.cohort import Cohort
from stethos.diagnose.federated.inside import InsideMargins
from stethos.diagnose.federated.verdict import ClientVerdict
from stethos.diagnose.finding import Evidence
from stethos.outlier import deviations
from stethos.store.literal import literal

# By kind of fault: what the client does, the number that shows it, what that is called, what to do.
KINDS: dict[str, tuple[str, str, str, str]] = {
    "nan": ("sends NaN or infinite weights", "odd", "NaN or infinite elements", "reject its update; look for a division by zero or half precision in its training"),  # noqa: E501
    "free-rider": ("sends updates without training", "cos_last", "cosine to the last global change", "leave it out; check that its training runs"),  # noqa: E501
    "label-flip": ("has labels of one class flipped", "entry_loss", "loss of the incoming model on its data", "have it check the labels of these classes; leave it out until then"),  # noqa: E501
    "label-noise": ("has wrong labels", "entry_loss", "loss of the incoming model on its data", "have it check its labels; leave it out until then"),  # noqa: E501
    "feature-fault": ("has noisy or shifted inputs", "input_cos", "similarity of its inputs' use to the others'", "have it check its preprocessing (scaling, sensor, missing values)"),  # noqa: E501
    "backdoor": ("trains towards one class on some inputs, like a backdoor", "input_focus", "share of the change in a single input", "leave it out and look for a trigger in its data; retrain from before its first round"),  # noqa: E501
    "sign-flip": ("sends its update with the sign flipped", "cos_centre", "cosine to the other clients", "leave it out; check how it computes what it sends (new minus old)"),  # noqa: E501
    "scaling": ("sends its update much too large", "norm_ratio", "size relative to the median client", "clip or normalise its update; check the weighting by samples"),  # noqa: E501
    "update-noise": ("sends noise on top of its update", "cos_self", "cosine to its own last update", "check its privacy noise, compression or transport"),  # noqa: E501
    "wrong-lr": ("trains with another learning rate than the others", "norm_ratio", "size relative to the median client", "have it check its training settings"),  # noqa: E501
    "duplicates": ("trains on the same few samples again and again", "entry_loss", "loss of the incoming model on its data", "have it check how it loads its data"),  # noqa: E501
    "target-fault": ("has targets in other units, or unrelated to its inputs", "entry_loss", "loss of the incoming model on its data", "have it check what its model is to predict, and in which units"),  # noqa: E501
    "unknown": ("trains unlike the others; the kind of fault is unknown", "norm_ratio", "size relative to the median client", "compare its training code, loss and optimizer with another client's"),  # noqa: E501
    "stale": ("starts from an old global model", "cos_back", "cosine to the way back to an older model", "check that it receives the current model, and whether it is late"),  # noqa: E501
}  # fmt: skip

_WORTH_SAYING = 0.6
_LABELS = {
    **{column: label for _, column, label, _ in KINDS.values()},
    "sign_agreement": "elements that move as the others' do",
    "exit_loss": "loss after its training",
    "zero_share": "share of weights it leaves alone",
}


def of_federation(federation: str | None) -> str:
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
    "fixed": "one of its inputs is always the same, and takes many values at the others",
    "column": "one or two of its inputs do not belong to the others, or to the classes, as they do elsewhere",
    "targets": "its targets do not follow from its inputs as the others' do",
    "relabelled": "the same samples came with other labels than before",
    "labels": "its samples look like other classes than their labels say",
    "partly": "it sends only a part of what its optimizer did",
    "order": "its inputs look like the others' once they are put in another order",
    "unknown-words": "one token, as for unknown words, stands where the others have words",
    "again": "words of its texts come again in the same text, far more often than at the others",
    "in-order": "its samples come in the order of their labels, the others' mixed",
    "uncleared": "gradients of the step before are still there when the next is computed",
    "untrained": "it trains fewer of the model's weights than the others",
    "ascent": "the loss on its own samples rises as it trains, while the others' falls",
    "turned": "its gradients point elsewhere when its optimizer steps than when they were computed",
    "between": "something other than its optimizer changes its weights between steps",
    "otherwise": "its loss is computed by other operations than the others'",
    "early": "it makes far fewer, or more, steps than the others",
    "training": "its steps are far longer than the others', for its learning rate",
}


def shown_inside(margins: InsideMargins | None, verdict: ClientVerdict, federation: str | None) -> Iterator[Evidence]:
    """What stands out inside of the client, the farthest first."""
    if margins is None or verdict.client not in margins.clients:
        return
    place = margins.clients.index(verdict.client)
    far = sorted(((float(values[place]), name) for name, values in margins.kinds.items()), reverse=True)
    where = "" if federation is None else f" AND federation = {literal(federation)}"
    sql = f"SELECT round, kind, value FROM evidence WHERE client = {literal(verdict.client)}{where} ORDER BY round"
    for margin, name in far[:2]:
        if margin >= _WORTH_SAYING:
            yield Evidence(f"{_SHOWN_INSIDE[name]} ({margin:.1f} times the distance that accuses)", sql)


def evidence_of(cohort: Cohort, verdict: ClientVerdict, federation: str | None) -> Iterator[Evidence]:
    """The quantity that shows the kind, then the two in which the client stands out most."""
    if verdict.client not in cohort.clients:  # it trained, but nothing came of it
        return
    place = cohort.clients.index(verdict.client)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing are NaN
        shown = KINDS[verdict.kind][1]
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
                each = np.nanmedian(values, axis=0)  # medians over its rounds, as every table of clients has them
                mine, rest = float(each[place]), float(np.nanmedian(np.delete(each, place)))
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
