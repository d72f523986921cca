"""Faults of labels: which share of a client's samples look like another class than their label says.

Two witnesses: the other clients' data (class means, by their sketches) and the incoming global model's answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.data_sketch import Sketch, fewest_of, fewest_samples
from stethos.diagnose.federated.inside_data import FEWEST_SAMPLES
from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.reference import references_of

Array = npt.NDArray[np.float64]
_FEWEST_OF_CLASS = 5
_FEWEST_HERE = 2
_MOST_CLASSES = 32
_INFORMED, _NEARLY_BEST = 0.15, 0.7
_ASKED_AGAIN = 2  # rules and weighing ask the same, of all clients and of those who are not accused
_MOST_OF_ONE = 0.5  # of the others' samples of a class: with more of one client it is one word against another
_LEAST_OF_OTHERS = 0.02
_SEVERAL_HOLDERS, _ENOUGH_OF_SEVERAL = 3, 0.33  # of the others; of as many samples: their word counts beside it


@dataclass(frozen=True, eq=False)
class Mislabelled:
    """Per client: estimated share of wrong labels and its error, the largest cell (label, looks like) and its error."""

    share: Array
    error: Array
    cell: Array
    cell_error: Array
    explained: Array  # how much of what sets its classes apart wrong labels explain
    pairs: list[tuple[int, int] | None]
    is_of_answers: bool = False
    informed: float = 1.0  # how much whoever answers knows

    @classmethod
    def nothing(cls, count: int, *, is_of_answers: bool = False) -> Mislabelled:
        share, error, cell, cell_error, explained = np.full((5, count), np.nan)
        return cls(share, error, cell, cell_error, explained, [None] * count, is_of_answers)


def by_data(clients: Sequence[Sketch | None], typical: Sequence[Sketch | None]) -> Mislabelled:
    """From class means: a class of a client lies between those of the others in the proportion of its wrong labels.

    What of its place no mixture of classes explains is the client's own look; the error grows with it.
    """
    return _by_data(tuple(clients), tuple(typical))


@lru_cache(maxsize=_ASKED_AGAIN)
def _by_data(clients: tuple[Sketch | None, ...], typical: tuple[Sketch | None, ...]) -> Mislabelled:
    found = Mislabelled.nothing(len(clients))
    labels, counts = _counts_of(typical)
    references, fewest = references_of(clients, typical), fewest_samples(clients, FEWEST_SAMPLES)
    for place, mine in enumerate(clients):
        if mine is None or mine.n < fewest or mine.classes is None:
            continue
        places = [at for at, one in enumerate(typical) if one is not None and at != place and one.can_join(mine)]
        if len(places) >= 3:
            whole = references[place]
            assert whole is not None
            holders = (counts[places] >= 2).sum(0)
            is_known = (holders >= 2) & (counts[places].sum(0) >= _FEWEST_OF_CLASS)
            leads = _leads(typical, places, labels, counts)
            _mixture(found, place, mine, whole, [label for label, known in zip(labels, is_known, strict=True) if known],
                     dict(zip(labels, holders.tolist(), strict=True)), leads, fewest)  # fmt: skip
    return found


def _leads(
    clients: Sequence[Sketch | None], places: Sequence[int], labels: Sequence[int], counts: Array
) -> dict[int, Sketch]:  # fmt: skip
    """Who of the others holds most samples of a class, where that is one of them."""
    others = counts[places]
    found = {}
    for at in np.flatnonzero(others.max(0) > _MOST_OF_ONE * others.sum(0)).tolist():
        lead = clients[places[int(others[:, at].argmax())]]
        assert lead is not None
        found[labels[at]] = lead
    return found


def _counts_of(clients: Sequence[Sketch | None]) -> tuple[list[int], Array]:
    """All classes, and how many samples of each every client has."""
    labels = sorted({label for one in clients if one is not None for label in one.classes or ()})
    places = {label: place for place, label in enumerate(labels)}
    counts = np.zeros((len(clients), len(labels)))
    for row, one in enumerate(clients):
        if one is not None and one.classes is not None:
            counts[row, [places[label] for label in one.classes]] = one.counts
    return labels, counts


def _mixture(
    found: Mislabelled, place: int, mine: Sketch, whole: Sketch, labels: Sequence[int],
    holders: Mapping[int, int], leads: Mapping[int, Sketch], fewest: float,
) -> None:  # fmt: skip
    """Of one client; `holders` says how many others have a class, `leads` who of them has most of it."""
    if len(labels) < 2:
        return
    inputs = mine.features - mine.targets
    known = [(whole.classes or ()).index(label) for label in labels]
    means, sizes = whole.means[known][:, :inputs], whole.counts[known]
    own = [place for place, label in enumerate(mine.classes or ()) if label in labels]
    at = np.array([labels.index((mine.classes or ())[place]) for place in own], int)
    counts = mine.counts[own]
    usual, votes, enough = means[at], sizes[at], counts.copy()
    for row, label in enumerate(labels[one] for one in at):
        if label in leads or votes[row] < counts[row]:  # one word against another, unless several others have theirs
            usual[row], votes[row] = _without(whole, leads.get(label), label, inputs)
            several = holders[label] - (label in leads) >= _SEVERAL_HOLDERS
            enough[row] = _ENOUGH_OF_SEVERAL * counts[row] if several else np.inf
    is_told = (counts >= _FEWEST_HERE) & (votes >= np.maximum(enough, _FEWEST_OF_CLASS))
    at, counts, votes = at[is_told], counts[is_told], votes[is_told]
    apart = mine.means[own][is_told][:, :inputs] - usual[is_told]
    if (total := float(counts.sum())) < fewest:
        return
    weight, precision = 1.0 / (1.0 / counts + 1.0 / votes), whole.precision(inputs)
    # All other classes of the others, seen from this one: their products with each other and with where it lies
    rest = np.array([[number for number in range(len(labels)) if number != one] for one in at])
    centred = means - means.mean(0)
    products, along = centred @ precision @ centred.T, centred @ precision @ apart.T
    mine_, theirs = at[:, None], np.arange(len(at))
    gram = products[rest[:, :, None], rest[:, None, :]] - products[rest, mine_][:, :, None]
    gram = gram - products[rest, mine_][:, None, :] + products[at, at][:, None, None]
    inverse = np.linalg.inv(gram + np.eye(len(labels) - 1) * (4.0 / weight)[:, None, None])
    shares = (inverse @ (along[rest, theirs[:, None]] - along[at, theirs][:, None])[:, :, None])[:, :, 0]
    spread = inverse @ gram @ inverse / weight[:, None, None]
    left = apart - ((means[rest] - means[at][:, None]) * shares[:, :, None]).sum(1)
    moved = float((weight * ((apart @ precision) * apart).sum(1)).sum()) - inputs * len(at)
    strange = float((weight * ((left @ precision) * left).sum(1)).sum())
    freedom = max(inputs - (len(labels) - 1), 1) * len(at)
    growth = np.sqrt(max(1.0, strange / max(freedom, 1.0)))
    found.explained[place] = 1.0 - max(strange - freedom, 0.0) / max(moved, 1e-9) if moved > 0 else 1.0
    found.share[place] = float((counts * shares.sum(1)).sum()) / total
    found.error[place] = growth * np.sqrt((counts**2 * spread.sum((1, 2))).sum()) / total
    values, errors = counts[:, None] * shares, counts[:, None] * np.sqrt(np.diagonal(spread, axis1=1, axis2=2))
    row, column = map(int, np.unravel_index(int(values.argmax()), values.shape))
    found.cell[place], found.cell_error[place] = values[row, column] / total, growth * errors[row, column] / total
    found.pairs[place] = (labels[at[row]], labels[rest[row, column]])


def _without(whole: Sketch, lead: Sketch | None, label: int, inputs: int) -> tuple[Array, float]:
    """Where the others' samples of a class lie, and how many they are, without those of who has most of them."""
    at = (whole.classes or ()).index(label)
    mean, count = whole.means[at][:inputs], float(whole.counts[at])
    if lead is None:
        return mean, count
    own = (lead.classes or ()).index(label)
    left = count - float(lead.counts[own])
    if left < 1:
        return mean, 0.0
    return (count * mean - lead.counts[own] * lead.means[own][:inputs]) / left, left


def by_answers(inside: InsideEvidence, rounds: Sequence[int]) -> Mislabelled:
    """From the incoming model's answers: errors beyond those with the others' samples of the same label.

    Of the rounds only those count in which the model knows nearly as much as it ever does: before, it errs with all.
    """
    return _by_answers(inside, tuple(rounds))


@lru_cache(maxsize=_ASKED_AGAIN)
def _by_answers(inside: InsideEvidence, rounds: tuple[int, ...]) -> Mislabelled:
    clients = inside.clients
    told = {number: _answers_in(inside, number) for number in rounds}
    known = {number: _informed(counts.sum(0)) for number, counts in told.items()}
    best = max(known.values(), default=0.0)
    chosen = [told[number] for number in rounds if known[number] >= _NEARLY_BEST * best]
    found = Mislabelled.nothing(len(clients), is_of_answers=True)
    counts = np.sum(chosen, axis=0) if chosen else np.zeros((len(clients), _MOST_CLASSES, _MOST_CLASSES))
    if _informed(counts.sum(0)) < _INFORMED:
        return found  # it has not learnt enough to say
    distinct = np.nansum(inside.matrix("new") - np.nan_to_num(inside.matrix("relabelled")), axis=0)
    _excess(found, counts, distinct)
    if any("tags" in facts for turns in inside.turns.values() for facts in turns.values()):
        found.pairs[:] = [None] * len(clients)  # a class is one answer of several, not a label that users know
    return replace(found, informed=_informed(counts.sum(0)))


def _answers_in(inside: InsideEvidence, number: int) -> Array:
    """How often each client's samples of each label were answered how, in one round."""
    counts = np.zeros((len(inside.clients), _MOST_CLASSES, _MOST_CLASSES))
    places: list[int] = []
    told: list[float] = []
    for place, client in enumerate(inside.clients):
        facts = inside.turns.get(client, {}).get(number, {})
        cells = facts.get("answers")
        if isinstance(cells, list) and cells and len(cells) % 3 == 0 and facts.get("shared", 1) == 1:
            places += [place] * (len(cells) // 3)
            told += cells
    if places:
        label, said, count = np.array(told, int).reshape(-1, 3).T
        is_known = (label >= 0) & (label < _MOST_CLASSES) & (said >= 0) & (said < _MOST_CLASSES)
        np.add.at(counts, (np.array(places)[is_known], label[is_known], said[is_known]), count[is_known])
    return counts


def _informed(counts: Array) -> float:
    """How much more often the model says a class of samples with this label than of others, on average; 1 is always."""
    said = counts.sum(0) / max(counts.sum(), 1)
    sizes = counts.sum(1)
    is_there = sizes > 0
    if is_there.sum() < 2:
        return 0.0
    right = np.diag(counts)[is_there] / sizes[is_there]
    usual = said[is_there]
    return float(np.average(right - usual, weights=sizes[is_there]) / max(1 - np.average(usual), 1e-9))


def _excess(found: Mislabelled, counts: Array, distinct: Array) -> None:
    """Of each client, by how its samples of each label were answered, beside the other holders of that label."""
    used = int(np.flatnonzero(counts.sum((0, 1)) + counts.sum((0, 2)))[-1]) + 1
    counts = counts[:, :used, :used]
    fewest = fewest_of(distinct, FEWEST_SAMPLES)
    held, right = counts.sum(2), np.diagonal(counts, axis1=1, axis2=2)
    again = np.maximum(counts.sum((1, 2)) / np.maximum(distinct, 1), 1.0)  # answers to the same sample say little new
    is_holder = held >= 3
    with np.errstate(divide="ignore", invalid="ignore"):
        wrong = np.where(is_holder, 1 - right / held, 0.0)
        holders = is_holder.sum(0) - is_holder  # of the others; whole numbers, so that taking one off is exact
        samples = np.where(is_holder, held, 0.0).sum(0) - np.where(is_holder, held, 0.0)
        told = np.where(is_holder[:, :, None], counts, 0.0)
        usual = (told.sum(0) - told) / samples[:, :, None]
        between, most = _between(wrong, np.where(is_holder, held / again[:, None], 0.0))
        between = between * (holders + 1) / (holders - 1)  # what few differ by says little of what all do
        error = 1 - np.diagonal(usual, axis1=1, axis2=2)
        seen = np.clip(error * (1 - error), 0.02, 1)
    for place, mine in enumerate(counts):
        if distinct[place] < fewest:
            continue
        labels = np.flatnonzero((held[place] > 0) & (holders[place] >= 2))
        n = held[place, labels]
        total = float(n.sum())
        if total / again[place] < fewest:
            continue
        share = n * (1 - right[place, labels] / n - error[place, labels])
        apart = again[place] * seen[place, labels] / samples[place, labels]
        apart = again[place] * n * seen[place, labels] + n**2 * (
            apart + between[place, labels] * (1 + most[place, labels])
        )
        found.share[place], found.error[place] = float(share.sum()) / total, float(np.sqrt(apart.sum())) / total
        row, said = np.nonzero(mine[labels] * (labels[:, None] != np.arange(used)))
        if len(row):
            often = usual[place, labels[row], said]
            values, p = mine[labels[row], said] - n[row] * often, np.clip(often, 0.02, 0.98)
            errors = np.sqrt(again[place] * n[row] * p * (1 - p) + n[row] ** 2 * between[place, labels[row]])
            best = np.lexsort((said, row, errors, values))[-1]
            found.cell[place], found.cell_error[place] = values[best] / total, errors[best] / total
            found.pairs[place] = (int(labels[row[best]]), int(said[best]))
        else:
            found.cell[place], found.cell_error[place] = 0.0, 1.0 / total


def _between(wrong: Array, weights: Array) -> tuple[Array, Array]:
    """By how much the others of each differ in their share of errors, beyond chance, as a variance, by class.

    Each counts by its samples: of three of them nothing can be said. Beside it, how much few of them have of all.
    """

    def of_others(values: Array) -> Array:
        return np.asarray(values.sum(0) - values)

    total = of_others(weights)
    middle = of_others(weights * wrong) / total
    spread = of_others(weights * wrong**2) / total - middle**2
    most = of_others(weights**2) / total**2
    by_chance = np.clip(middle * (1 - middle), 0.01, 1) * (of_others((weights > 0).astype(float)) - 1) / total
    return np.maximum(spread - by_chance, 0.0) / np.maximum(1 - most, _LEAST_OF_OTHERS), np.maximum(most, 0.0)
