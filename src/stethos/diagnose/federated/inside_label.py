"""Faults of labels: which share of a client's samples look like another class than their label says.

Two witnesses: the other clients' data (class means, by their sketches) and the incoming global model's answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.data_sketch import Sketch, joined
from stethos.diagnose.federated.inside_data import FEWEST_SAMPLES
from stethos.diagnose.federated.inside_evidence import InsideEvidence

Array = npt.NDArray[np.float64]
_FEWEST_OF_CLASS = 5
_FEWEST_HERE = 2
_MOST_CLASSES = 32
_INFORMED = 0.15
_MOST_OF_ONE = 0.5  # of the others' samples of a class: with more of one client it is one word against another


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

    @classmethod
    def nothing(cls, count: int, *, is_of_answers: bool = False) -> Mislabelled:
        share, error, cell, cell_error, explained = np.full((5, count), np.nan)
        return cls(share, error, cell, cell_error, explained, [None] * count, is_of_answers)


def by_data(clients: Sequence[Sketch | None], typical: Sequence[Sketch | None]) -> Mislabelled:
    """From class means: a class of a client lies between those of the others in the proportion of its wrong labels.

    What of its place no mixture of classes explains is the client's own look; the error grows with it.
    """
    found = Mislabelled.nothing(len(clients))
    for place, mine in enumerate(clients):
        if mine is None or mine.n < FEWEST_SAMPLES or mine.classes is None:
            continue
        others = [
            one for number, one in enumerate(typical) if one is not None and number != place and one.can_join(mine)
        ]
        if len(others) >= 3:
            _mixture(found, place, mine, joined(others), others)
    return found


def _holders(others: Sequence[Sketch]) -> tuple[dict[int, int], dict[int, float]]:
    """By class: how many clients have it, and the most samples that one of them has."""
    found, most = dict[int, int](), dict[int, float]()
    for one in others:
        for label, count in zip(one.classes or (), one.counts, strict=False):
            found[label] = found.get(label, 0) + int(count >= 2)
            most[label] = max(most.get(label, 0.0), float(count))
    return found, most


def _mixture(found: Mislabelled, place: int, mine: Sketch, whole: Sketch, others: Sequence[Sketch]) -> None:
    holders, most = _holders(others)
    known = [
        number for number, label in enumerate(whole.classes or ())
        if whole.counts[number] >= _FEWEST_OF_CLASS and holders.get(label, 0) >= 2
    ]  # fmt: skip
    labels = [(whole.classes or ())[number] for number in known]
    if len(known) < 2:
        return
    inputs = mine.features - mine.targets
    precision = np.linalg.inv(whole.covariance[:inputs, :inputs])
    means, sizes = whole.means[known][:, :inputs], whole.counts[known]
    total = share = variance = strange = freedom = moved = 0.0
    cells: list[tuple[float, float, int, int]] = []
    for label, count, mean in zip(mine.classes or (), mine.counts, mine.means, strict=True):
        if label not in labels or count < _FEWEST_HERE:
            continue
        at = labels.index(label)
        if sizes[at] < count:  # most samples of this class are its own
            continue
        if most[label] > _MOST_OF_ONE * sizes[at]:  # or another's, who may be the one that is wrong
            continue
        rest = [number for number in range(len(labels)) if number != at]
        ways = (means[rest] - means[at]).T
        apart = mean[:inputs] - means[at]
        weight = 1.0 / (1.0 / count + 1.0 / sizes[at])
        gram = ways.T @ precision @ ways
        inverse = np.linalg.inv(gram + np.eye(len(rest)) * 4.0 / weight)
        shares = inverse @ (ways.T @ precision @ apart)
        spread = inverse @ gram @ inverse / weight
        left = apart - ways @ shares
        moved += weight * float(apart @ precision @ apart) - inputs
        strange += weight * float(left @ precision @ left)
        freedom += max(inputs - len(rest), 1)
        total += count
        share += count * float(shares.sum())
        variance += count**2 * float(spread.sum())
        cells += [
            (count * float(one), count * float(np.sqrt(spread[k, k])), label, labels[rest[k]])
            for k, one in enumerate(shares)
        ]
    if total < FEWEST_SAMPLES:
        return
    growth = np.sqrt(max(1.0, strange / max(freedom, 1.0)))
    found.explained[place] = 1.0 - max(strange - freedom, 0.0) / max(moved, 1e-9) if moved > 0 else 1.0
    found.share[place], found.error[place] = share / total, growth * np.sqrt(variance) / total
    best = max(cells)
    found.cell[place], found.cell_error[place] = best[0] / total, growth * best[1] / total
    found.pairs[place] = (best[2], best[3])


def by_answers(inside: InsideEvidence, rounds: Sequence[int]) -> Mislabelled:
    """From the incoming model's answers: errors beyond those with the others' samples of the same label."""
    clients = inside.clients
    counts = np.zeros((len(clients), _MOST_CLASSES, _MOST_CLASSES))
    for place, client in enumerate(clients):
        for number in rounds:
            facts = inside.turns.get(client, {}).get(number, {})
            cells = facts.get("answers")
            if isinstance(cells, list) and len(cells) % 3 == 0 and facts.get("shared", 1) == 1:
                for label, said, count in np.array(cells, int).reshape(-1, 3):
                    if 0 <= label < _MOST_CLASSES and 0 <= said < _MOST_CLASSES:
                        counts[place, label, said] += count
    found = Mislabelled.nothing(len(clients), is_of_answers=True)
    if _informed(counts.sum(0)) < _INFORMED:
        return found  # it has not learnt enough to say
    per_client = counts.sum(2)
    distinct = np.nansum(inside.matrix("new") - np.nan_to_num(inside.matrix("relabelled")), axis=0)
    for place in range(len(clients)):
        mine = counts[place]
        if distinct[place] < FEWEST_SAMPLES:
            continue
        again = max(mine.sum() / distinct[place], 1.0)  # answers to the same sample say little new
        others, held = np.delete(counts, place, axis=0), np.delete(per_client, place, axis=0)
        _excess(found, place, mine, others, held, again)
    return found


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


def _excess(found: Mislabelled, place: int, mine: Array, others: Array, held: Array, again: float) -> None:
    right = np.eye(_MOST_CLASSES, dtype=bool)
    total = share = variance = 0.0
    cells: list[tuple[float, float, int, int]] = []
    for label in np.flatnonzero(mine.sum(1)):
        is_holder = held[:, label] >= 3
        if is_holder.sum() < 2:
            continue
        rates = others[is_holder, label] / held[is_holder, label][:, None]
        wrong = 1 - rates[:, label]
        usual = others[is_holder, label].sum(0) / held[is_holder, label].sum()
        n, error = mine[label].sum(), 1 - usual[label]
        between = max(
            float(np.var(wrong)) - float(np.mean(np.clip(wrong * (1 - wrong), 0.01, 1) / held[is_holder, label])), 0.0
        )
        seen = max(np.clip(error * (1 - error), 0.02, 1), 0.02)
        holders = int(is_holder.sum())
        between *= (holders + 1) / (holders - 1)  # what few differ by says little of what all do
        total += n
        share += n * (1 - mine[label, label] / n - error)
        variance += again * n * seen + n**2 * (
            again * seen / held[is_holder, label].sum() + between * (1 + 1 / holders)
        )
        for said in np.flatnonzero(mine[label] * ~right[label]):
            p = float(np.clip(usual[said], 0.02, 0.98))
            cells.append(
                (
                    mine[label, said] - n * usual[said],
                    np.sqrt(again * n * p * (1 - p) + n**2 * between),
                    int(label),
                    int(said),
                )
            )
    if total / again < FEWEST_SAMPLES:
        return
    found.share[place], found.error[place] = share / total, np.sqrt(variance) / total
    if cells:
        best = max(cells)
        found.cell[place], found.cell_error[place] = best[0] / total, best[1] / total
        found.pairs[place] = (best[2], best[3])
    else:
        found.cell[place], found.cell_error[place] = 0.0, 1.0 / total
