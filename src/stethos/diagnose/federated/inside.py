"""Verdicts from inside: faults that clients' own data, training and sending show, and how far each stands out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.column_order import column_order
from stethos.diagnose.federated.column_unlikeness import column_unlikeness
from stethos.diagnose.federated.data_sketch import Sketch, joined
from stethos.diagnose.federated.data_unlikeness import repeated_words
from stethos.diagnose.federated.inside_data import data_margins
from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.inside_label import Mislabelled, by_answers, by_data
from stethos.diagnose.federated.inside_update import update_margins
from stethos.diagnose.federated.repeated_samples import duplicate_margins
from stethos.diagnose.federated.standing_out import deviations, margins
from stethos.diagnose.federated.token_unlikeness import unknown_words
from stethos.diagnose.turn import median_without_each

Array = npt.NDArray[np.float64]
_WARM_UP = 1
_CHANGED = 0.05  # share of samples that have other labels than before
_PASSED = 3  # rounds without a sign of it, until a fault is over
_EXPLAINED = 0.7
_SURE, _FEWEST_LEFT = 1.2, 5
_STANDS_OUT = 0.5  # of the margin that accuses: who does not hides nobody
_OTHER_DATA = 0.4  # of the margin that accuses: then its training may differ, too
_DENIED, _TWICE_AS_SURE = 0.75, 1.2  # standard deviations: a witness that sees less denies it; the other must see more
_KNOWS = 0.7  # a model that knows less has learnt wrong labels of few clients as well as right ones
_FAR_LESS, _ALONE = 0.4, 1.3  # of the share that the other sees: that denies it, too; one witness alone must see more
_ALL_OF_ONE = 2.4  # one input that never changes
_NO_OTHER_ORDER, _SURELY_ANOTHER = 0.5, 2.0
_LOST_WORDS = 0.2  # of all words
_HALF_AGAIN = 0.25  # of a text's words: where half of it is a copy
_FAR_JOINT, _FAR_LINK = 1.5, 2.0  # times as far as what stands out: no honest client got farther than half of that
_WORTH_NAMING, _MOSTLY = 0.7, 0.6  # of the margin that accuses; of the wrong labels: then they are of one class


# A sensor of another make changes how inputs hang together and which values are common. That alone is no fault: the
# incoming model's loss on them must be higher, too, by more than the others' losses differ. Others' schedules, schemes
# of sending and rows in the order of a file are how honest federations differ: their kinds must stand out so many times
# farther.
_UNLIKE, _HARMFUL, _HARMFUL_DEVIATIONS = ("noise", "grain"), 0.1, 2.0
_OF_TARGETS = ("target-units", "targets")  # no fault where the incoming model does better on them
_STRICTER = {
    "atoms": 2.6, "wrong-lr": 2.5, "scaling": 2.3, "partly": 3.1, "constant": 1.25, "duplicates": 1.35,
}  # fmt: skip

# What stands out, the surest to be named first: the kind of fault that it means. What comes first explains what comes
# after: who trains from another model sends other updates, whose loss is another gets other answers, and wrong labels
# spread classes, where noise would not look like other classes.
KINDS = {
    "nan": "nan", "free-rider": "free-rider", "stale": "stale", "sign-flip": "sign-flip", "scaling": "scaling",
    "otherwise": "unknown", "update-noise": "update-noise", "wrong-lr": "wrong-lr", "duplicates": "duplicates",
    "not-finite": "feature-fault", "target-units": "target-fault", "units": "feature-fault",
    "unnormalised": "feature-fault", "constant": "feature-fault", "fewer-words": "feature-fault",
    "imputed": "feature-fault", "order": "feature-fault", "atoms": "backdoor", "labels": "label-noise",
    "noise": "feature-fault", "grain": "feature-fault", "targets": "target-fault", "fixed": "feature-fault",
    "column": "feature-fault", "unknown-words": "feature-fault", "again": "feature-fault",
    "relabelled": "label-noise", "in-order": "unknown", "partly": "unknown", "untrained": "unknown",
    "turned": "unknown", "between": "unknown", "ascent": "unknown", "uncleared": "unknown",
    "training": "unknown", "early": "unknown",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class InsideMargins:
    """By kind of fault, how far each client stands out: 1 and more is an accusation. `pairs` are of label flips."""

    clients: tuple[str, ...]
    kinds: dict[str, Array]
    pairs: list[tuple[int, int] | None]


def inside_margins(inside: InsideEvidence, harm: Mapping[str, float] = MappingProxyType({})) -> InsideMargins:
    """Compare the clients of a federation with each other, in everything that they show from inside.

    `harm` says by which share the incoming model's loss on a client's data lies above the others', where it is known.

    Those who surely stand out are what the others are no longer compared with: they make each other look ordinary, and
    innocent clients look odd. Where none of them stands out in how it trains, or in its data, that is not asked again.
    """
    whole = [joined(inside.data[client]) if inside.data.get(client) else None for client in inside.clients]
    training, data = _of_training(inside), _of_data(whole)
    first = _compared(inside, whole, training, data, harm)
    most = np.max(list(first.kinds.values()), axis=0, initial=0.0)
    is_sure = most >= _SURE
    if not is_sure.any() or (~is_sure).sum() < max(_FEWEST_LEFT, 0.6 * len(most)):
        return first
    left = np.flatnonzero(~is_sure)
    inside, whole = inside.only(left), [whole[place] for place in left]
    training = _without(training, is_sure, lambda: _of_training(inside))
    data = _without(data, is_sure, lambda: _of_data(whole))
    again = _compared(inside, whole, training, data, harm, is_misled=True)
    kinds = {name: values.copy() for name, values in first.kinds.items()}
    pairs = list(first.pairs)
    for place, at in enumerate(left):
        for name in kinds:
            kinds[name][at] = again.kinds[name][place] if name in again.kinds else 0.0
        pairs[at] = again.pairs[place]
    return InsideMargins(first.clients, kinds, pairs)


def _without(
    kinds: dict[str, Array], is_sure: npt.NDArray[np.bool_], compared_again: Callable[[], dict[str, Array]]
) -> dict[str, Array]:  # fmt: skip
    """The same of the others, compared without those who are sure if any of these stands out here at all."""
    if any(values[is_sure].max() >= _STANDS_OUT for values in kinds.values()):
        return compared_again()
    return {name: values[~is_sure] for name, values in kinds.items()}


def _of_training(inside: InsideEvidence) -> dict[str, Array]:
    return {
        **update_margins(inside), "duplicates": duplicate_margins(inside), "not-finite": _not_finite(inside),
    }  # fmt: skip


def _of_data(whole: Sequence[Sketch | None]) -> dict[str, Array]:
    return {**data_margins(whole), **_single_inputs(whole)}


def _compared(
    inside: InsideEvidence, whole: Sequence[Sketch | None], training: Mapping[str, Array], data: Mapping[str, Array],
    harm: Mapping[str, float], *, is_misled: bool = False,
) -> InsideMargins:  # fmt: skip
    """`is_misled` says that the global model learnt from others, who are faulty: its answers alone accuse nobody."""
    clients = inside.clients
    kinds = {**training, **data}
    odd = (
        np.max([kinds[name] for name in kinds if name not in ("training",)], axis=0)
        if kinds
        else np.zeros(len(clients))
    )
    looks = np.max([kinds[name] for name in _BY_LOOKS if name in kinds], axis=0, initial=0.0)
    kinds["ascent"] = np.where(looks >= _OTHER_DATA, np.minimum(kinds["ascent"], 0.9), kinds["ascent"])
    typical = [one if odd[place] < 1 else None for place, one in enumerate(whole)]
    witnesses = [by_data(whole, typical), by_answers(inside, inside.rounds[_WARM_UP:])]
    kinds["labels"], pairs = _labels(witnesses, len(clients))
    if is_misled and np.isfinite(witnesses[0].share).any():
        kinds["labels"] = np.minimum(kinds["labels"], _labels(witnesses[:1], len(clients))[0])
    if "order" in kinds:  # wrong labels mix up which inputs tell classes
        is_mixed_up = (kinds["labels"] >= 1) & (kinds["order"] < _SURELY_ANOTHER)
        kinds["order"] = np.where(is_mixed_up, np.minimum(kinds["order"], _NO_OTHER_ORDER), kinds["order"])
    kinds["relabelled"] = _relabelled(inside)
    kinds["in-order"] = _in_order(inside)
    above = np.array([harm.get(client, np.nan) for client in clients])
    is_harmless = (above < _HARMFUL) | (deviations(above, 0.0) < _HARMFUL_DEVIATIONS)
    for name in _UNLIKE:
        if name in kinds:
            kinds[name] = np.where(is_harmless, 0.0, kinds[name])
    for name in _OF_TARGETS:
        if name in kinds:
            kinds[name] = np.where(above < 0.0, 0.0, kinds[name])
    return InsideMargins(clients, {name: one / _STRICTER.get(name, 1.0) for name, one in kinds.items()}, pairs)


def _single_inputs(whole: Sequence[Sketch | None]) -> dict[str, Array]:
    """One input, or two, that do not belong: always the same, or unrelated to what they are related to elsewhere."""
    found, (again, error) = column_unlikeness(whole), repeated_words(whole)
    unknown, unknown_error = unknown_words(whole)
    return {
        "fixed": found["fixed"] / _ALL_OF_ONE,
        "column": np.maximum(found["joint"] / _FAR_JOINT, found["link"] / _FAR_LINK),
        "again": margins(again, _HALF_AGAIN, 4.0, 0.03, error), "order": column_order(tuple(whole)),
        "unknown-words": margins(unknown, _LOST_WORDS, 4.0, 0.03, unknown_error),
    }  # fmt: skip


def loss_above_others(entry_loss: Array) -> Array:
    """By which share the incoming model's loss on each client's data lies above the others', from rounds x clients.

    NaN where it is not known.
    """
    rounds = entry_loss[_WARM_UP:] if len(entry_loss) > _WARM_UP else entry_loss
    found = np.full(rounds.shape[1], np.nan)
    known = np.flatnonzero(np.isfinite(rounds).any(0))
    if len(known) > 1:
        losses = np.nanmedian(rounds[:, known], axis=0)
        usual = median_without_each(losses)
        found[known] = (losses - usual) / np.maximum(np.abs(usual), 1e-9)
    return found


def _not_finite(inside: InsideEvidence) -> Array:
    odd = np.nan_to_num(inside.matrix("odd_batches")).sum(0) > 0
    return np.where(odd & (odd.mean() <= 0.4), 5.0, 0.0)


def _in_order(inside: InsideEvidence) -> Array:
    """Samples that follow each other have equal labels, on average over its turns."""
    order = np.nan_to_num(inside.matrix("in_order"))
    return margins(order.sum(0) / max(len(order), 1), 0.5, 4.0, 0.1)


def _relabelled(inside: InsideEvidence) -> Array:
    """The same inputs with other labels than in an earlier round."""
    share = np.nan_to_num(inside.matrix("relabelled") / np.maximum(inside.matrix("rows"), 1))
    return margins(share.max(0, initial=0.0), 0.2, 4.0, 0.02)


def _labels(witnesses: Sequence[Mislabelled], count: int) -> tuple[Array, list[tuple[int, int] | None]]:
    """Both witnesses together, in standard deviations.

    Where a client's data look unlike the others' for other reasons than wrong labels, nobody can say. What the model
    answers depends on how many samples of a class it saw: one answer too often counts only as far as there are more
    errors altogether.
    """
    together, known = np.zeros(count), np.zeros(count)
    found, most = np.zeros(count), np.zeros(count)
    pairs: list[tuple[int, int] | None] = [None] * count
    is_other = np.any([np.nan_to_num(one.explained, nan=1.0) < _EXPLAINED for one in witnesses], axis=0)
    is_denied, speaking = np.zeros(count, bool), np.zeros(count)
    for witness in witnesses:
        most_seen = np.fmax(
            deviations(witness.share, 0.03, witness.error), deviations(witness.cell, 0.03, witness.cell_error)
        )
        is_denied |= (most_seen < _DENIED) & (witness.informed >= _KNOWS)
        speaking += np.isfinite(most_seen)
        cell = np.fmin(witness.cell, witness.share) if witness.is_of_answers else witness.cell
        for values, errors, least in ((witness.share, witness.error, 0.1), (cell, witness.cell_error, 0.08)):
            alone = np.where(is_other, 0.0, margins(values, least, 3.0, 0.03, errors))
            z = np.where(is_other, np.nan, deviations(values, 0.03, errors))
            together += np.nan_to_num(np.clip(z, -2.0, 6.0))
            known += np.isfinite(z)
            most = np.maximum(most, np.nan_to_num(np.where(is_other, 0.0, values)) / least)
            if values is cell:
                for place in np.flatnonzero((alone >= _WORTH_NAMING) & (values >= _MOSTLY * witness.share)):
                    pairs[place] = witness.pairs[place]
            found = np.maximum(found, alone)
    mean = np.where(known > 0, together / np.maximum(known, 1), np.nan)
    found = np.maximum(found, np.minimum(margins(mean, 2.0, 3.0, 0.4), most))
    claimed = np.fmax.reduce([one.share for one in witnesses])
    for witness in witnesses:
        at_most = np.fmax(witness.share + 2 * witness.error, witness.cell + 2 * witness.cell_error)
        is_denied |= (at_most < _FAR_LESS * claimed) & (witness.informed >= _KNOWS)
    doubt = np.where(speaking < 2, _ALONE, np.where(is_denied, _TWICE_AS_SURE, 1.0))
    return found / doubt, pairs


# Names ------------------------------------------------------------------------------------------------

_BY_LOOKS = ("units", "unnormalised", "noise", "grain", "fewer-words", "target-units", "targets")
_OF_SENDING = ("free-rider", "sign-flip", "scaling", "update-noise")


class Named(NamedTuple):
    """What a client is called: the rule that it breaks, the kind of fault, and the classes of a label flip."""

    rule: str
    kind: str
    pair: tuple[int, int] | None


def named_in(found: InsideMargins, client: str) -> Named | None:
    """The first rule of `KINDS` that a client surely breaks, else the one that it comes nearest to; None: no rule."""
    place = found.clients.index(client)
    far = {name: float(found.kinds[name][place]) for name in KINDS if name in found.kinds}
    near = [name for name in far if far[name] >= _WORTH_NAMING]
    if not near:
        return None
    rule = next((name for name in near if far[name] >= 1.0), max(near, key=lambda name: far[name]))
    pair = found.pairs[place] if rule == "labels" else None
    return Named(rule, KINDS[rule] if pair is None else "label-flip", pair)


def span_of(inside: InsideEvidence, client: str, named: str) -> tuple[int, int | None]:
    """First and last round in which it shows; the last is None while it goes on."""
    turns = inside.turns.get(client, {})
    rounds = sorted(turns) or [one.number for one in inside.data.get(client, ())]
    marked = rounds
    if named in _OF_SENDING:
        marked = [number for number in rounds if _is_unfaithful(turns[number])]
    elif named in ("nan", "stale"):
        name = {"nan": "odd_sent", "stale": "begin"}[named]
        marked = [number for number in rounds if (turns[number].get(name) or 0) > 0.02]
    elif named in ("labels", "relabelled"):  # where labels changed, they were others before
        changed = [number for number in rounds if _share(turns[number], "relabelled") > _CHANGED]
        return (changed or rounds)[0], None
    marked = marked or rounds
    is_over = sum(number > marked[-1] for number in rounds) >= _PASSED
    return marked[0], marked[-1] if is_over else None


def _share(facts: Mapping[str, Any], name: str) -> float:
    value, rows = facts.get(name), facts.get("rows")
    return value / max(rows, 1) if isinstance(value, int | float) and isinstance(rows, int | float) else 0.0


def _is_unfaithful(facts: Mapping[str, Any]) -> bool:
    sent, along = facts.get("sent_sent"), facts.get("way_sent")
    if not isinstance(sent, int | float) or not isinstance(along, int | float):
        return False
    return sent <= 0 or not 0.8 < along / sent < 1.25
