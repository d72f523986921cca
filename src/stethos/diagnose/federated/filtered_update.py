"""Privacy filters between a client's training and what it sends: told by the site, or seen by their form.

A filter clips an update to a length, keeps some of its elements, or adds noise of one size. A fault of sending does
not: noise from a broken link or a bug grows and shrinks with the update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.accusation import Weighed
from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.verdict import ClientVerdict
from stethos.diagnose.window import Window

Array = npt.NDArray[np.float64]
READS = {"client_rounds": frozenset({"federation", "client", "filters"})}
_FEWEST_ROUNDS = 3
_STEADY = 0.03  # spread of a length that a filter sets, of its mean
_VARIES = 2.0  # times as much what it is relative to
_WHOLE = 0.99  # cosine to the training of what was clipped and otherwise left alone
_LEFT = 0.5  # cosine to the training below which a filter ruins an update
_NEARLY_ALL = 0.95  # of the training's way in the weights that are sent: then none is left out that counts
_LEAST = 0.2  # share of the training's way that is left in it, likewise
_OF_SENDING = frozenset({"scaling", "update-noise", "free-rider", "partly"})  # what stands out inside a filtered client


@dataclass(frozen=True, slots=True)
class AppliedFilter:
    """What a client's filter does, in words; `name` as its site calls it. `left` is what it leaves of the training."""

    client: str
    words: str
    name: str = ""
    left: float = float("nan")

    @property
    def is_ruinous(self) -> bool:
        return self.left < _LEFT


def filters_told(window: Window, federation: str | None) -> dict[str, str]:
    """The names that sites give their filters, by client."""
    frame = window.frame("client_rounds")
    if not len(frame) or any(name not in frame for name in ("client", "filters")):
        return {}
    names = frame["federation"].tolist() if "federation" in frame else [federation] * len(frame)
    rows = zip(names, frame["client"].tolist(), frame["filters"].tolist(), strict=True)
    return {str(client): told for name, client, told in rows
            if isinstance(told, str) and told and federation in (None, name)}  # fmt: skip


def filters_seen(inside: InsideEvidence | None) -> dict[str, AppliedFilter]:
    """Clients that send what their optimizer did, changed as filters change it."""
    if inside is None or len(inside.rounds) < _FEWEST_ROUNDS:
        return {}
    sent, along = inside.matrix("sent_sent"), inside.matrix("way_sent")
    way, kept, trained = inside.matrix("way"), inside.matrix("kept"), inside.matrix("trained")
    found = {}
    for place, client in enumerate(inside.clients):
        known = np.isfinite(sent[:, place]) & np.isfinite(along[:, place]) & (sent[:, place] > 0) & (way[:, place] > 0)
        if known.sum() >= _FEWEST_ROUNDS:
            columns = (one[known, place] for one in (sent, along, way, kept, trained))
            if (seen := _form(client, *columns)) is not None:
                found[client] = seen
    return found


def _form(client: str, sent: Array, along: Array, way: Array, kept: Array, trained: Array) -> AppliedFilter | None:
    """Which filter explains the lengths of what was sent, and of what was not of the training."""
    cosine = along / np.sqrt(sent)
    left = float(np.median(np.where(along < _LEAST, np.minimum(cosine, along / _LEAST * _LEFT), cosine)))
    if float(np.median(along)) <= 0:
        return None
    share = float(np.nanmedian(kept)) if np.isfinite(kept).mean() > 0.5 else 1.0
    if share < _NEARLY_ALL and float(np.nanmedian(along / kept)) < 1.05:
        return AppliedFilter(client, f"sends few of the weights, {share:.0%} of what its training did", left=left)
    length = way * np.sqrt(sent)
    if float(np.median(cosine)) > _WHOLE and _is_set(length, way, _STEADY) and float(np.median(sent)) < 1:
        return AppliedFilter(client, f"clips its update to a length of {np.median(length):.3g}", left=left)
    rest = way * np.sqrt(np.maximum(sent - along**2, 0))
    size = float(np.nanmedian(trained)) if np.isfinite(trained).any() else 1.0
    if float(np.median(rest / way)) > 0.1 and _is_set(rest, way, _STEADY + np.sqrt(2 / max(size, 1.0))):
        return AppliedFilter(client, f"adds noise of one size, {np.median(rest / way):.2g} times its update", left=left)
    return None


def _is_set(length: Array, way: Array, steady: float) -> bool:
    """Whether a length stays the same while the training's way does not."""
    return _spread(length) < steady and _spread(length / way) > _VARIES * _spread(length)


def _spread(values: Array) -> float:
    return float(values.std() / max(values.mean(), 1e-12))


def over_filtered(
    weighed: Weighed, told: Mapping[str, str], accused: Sequence[ClientVerdict]
) -> dict[str, AppliedFilter]:
    """Clients whose own filter, seen or told, explains why their updates are of no use.

    Nobody is where most clients' filters do the same: then it is how the federation works.
    """
    suspects = {one.client for one in accused}
    found = {client: one for client, one in filters_seen(weighed.inside).items() if one.is_ruinous}
    for client in told.keys() & suspects - found.keys():
        found[client] = AppliedFilter(client, "sends updates unlike the others'")
    for client in found.keys() & told.keys():
        one = found[client]
        found[client] = AppliedFilter(client, one.words, told[client], one.left)
    return {client: one for client, one in found.items() if not _is_more(client, weighed, accused)}


def _is_more(client: str, weighed: Weighed, accused: Sequence[ClientVerdict]) -> bool:
    """Whether more is odd about a client than a filter could do: its data, its training, or a sign that is turned."""
    verdict = next((one for one in accused if one.client == client), None)
    if verdict is not None and verdict.kind in ("nan", "sign-flip", "stale"):
        return True
    margins = weighed.margins
    if margins is None or client not in margins.clients:
        return False
    place = margins.clients.index(client)
    return any(float(values[place]) >= 1 for name, values in margins.kinds.items() if name not in _OF_SENDING)
