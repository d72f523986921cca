"""What clients are compared with, and their labels, against plain twins that take each client for itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from stethos.diagnose.federated.data_sketch import Sketch, joined
from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.inside_label import by_answers, by_data
from stethos.diagnose.federated.reference import references_of

Array = npt.NDArray[np.float64]
LABELS = (2, 3, 5, 7)


def sketch_of(chance: np.random.Generator, sizes: Sequence[int], wrong: float = 0.0, units: float = 1.0) -> Sketch:
    """A client with so many samples of each class in five inputs; some of its labels are wrong."""
    look = np.repeat(np.arange(len(LABELS)), sizes)
    x = chance.normal(size=(len(look), 5)) + 2.0 * np.eye(len(LABELS), 5)[look] + 7.0
    x[:, 0] *= units
    said = np.where(chance.random(len(look)) < wrong, chance.integers(len(LABELS), size=len(look)), look)
    there = np.unique(said)
    means = np.array([x[said == one].mean(0) for one in there])
    apart = x - means[np.searchsorted(there, said)]
    counts = np.array([(said == one).sum() for one in there], float)
    classes = tuple(LABELS[one] for one in there)
    return Sketch(1, "numbers", 5, float(len(x)), 0, classes, counts, means, apart.T @ apart)


def clients_of(count: int, seed: int = 0) -> list[Sketch | None]:
    chance = np.random.default_rng(seed)
    found: list[Sketch | None] = [
        sketch_of(chance, chance.integers(0, 30, len(LABELS)) + np.array([9, 0, 2, 0]), wrong=0.6 * (place == 3))
        for place in range(count)
    ]
    found[1] = None
    return found


@pytest.mark.parametrize("count", [4, 9, 30])
def test_references_are_those_of_a_plain_twin(count: int) -> None:
    clients = clients_of(count)
    clients[2] = sketch_of(np.random.default_rng(5), (20, 20, 20, 20), units=1e6)  # leaves no rounding in the others'
    typical = [None if place == 0 else one for place, one in enumerate(clients)]
    for place, found in enumerate(references_of(clients, typical)):
        others = [one for at, one in enumerate(typical) if one is not None and at != place]
        if clients[place] is None or len(others) < 3:
            assert found is None
            continue
        expected = joined(others)
        assert found is not None and found.classes == expected.classes and found.n == expected.n
        np.testing.assert_array_equal(found.counts, expected.counts)
        np.testing.assert_allclose(found.means, expected.means, rtol=1e-12)
        np.testing.assert_allclose(found.scatter, expected.scatter, rtol=1e-9, atol=1e-9 * found.scatter.max())
        np.testing.assert_allclose(found.precision(5) @ found.covariance, np.eye(5), atol=1e-4 if place != 2 else 1e-9)


def test_many_clients_are_compared_with_all_of_them_at_once() -> None:
    clients = clients_of(300)
    found = [one for one in references_of(clients, clients) if one is not None]
    assert len(found) == 299 and len({id(one) for one in found}) == 1
    assert found[0].n == sum(one.n for one in clients if one is not None)


def plain_mean(clients: Sequence[Sketch], label: int) -> tuple[np.ndarray, float, int]:
    """Where the samples of a class lie, how many they are, and how many clients have two and more."""
    held = [(one.counts[place], one.means[place]) for one in clients for place, own in enumerate(one.classes or ())
            if own == label]  # fmt: skip
    size = sum(count for count, _ in held)
    total = sum((count * mean for count, mean in held), np.zeros(5))
    return total / max(size, 1), size, sum(count >= 2 for count, _ in held)


def plain_share(mine: Sketch, others: Sequence[Sketch]) -> tuple[float, float] | None:
    """The share of wrong labels, and the largest cell, class by class."""
    whole = joined(others)
    counts = {label: [dict(zip(one.classes or (), one.counts, strict=True)).get(label, 0.0) for one in others]
              for label in whole.classes or ()}  # fmt: skip
    labels = [label for label in counts if sum(counts[label]) >= 5 and sum(one >= 2 for one in counts[label]) >= 2]
    look = {label: whole.means[(whole.classes or ()).index(label)] for label in labels}
    precision = np.linalg.inv(whole.covariance)
    total, share, cells = 0.0, 0.0, []
    for label, count, mean in zip(mine.classes or (), mine.counts, mine.means, strict=True):
        if label not in labels or count < 2:
            continue
        usual, size = look[label], sum(counts[label])
        if max(counts[label]) > 0.5 * size or size < count:  # one word against another: ask the rest, if they are three
            rest = [one for one, held in zip(others, counts[label], strict=True) if held <= 0.5 * size]
            usual, size, holders = plain_mean(rest, label)
            if size < max(5, 0.33 * count) or holders < 3:
                continue
        ways = np.array([look[one] - look[label] for one in labels if one != label]).T
        weight = 1 / (1 / count + 1 / size)
        gram = ways.T @ precision @ ways
        shares = np.linalg.solve(gram + np.eye(len(gram)) * 4 / weight, ways.T @ precision @ (mean - usual))
        total, share = total + count, share + count * float(shares.sum())
        cells += (count * shares).tolist()
    return (share / total, max(cells) / total) if total >= 15 else None


@pytest.mark.parametrize("count", [6, 9, 30])
def test_wrong_labels_are_those_of_a_plain_twin(count: int) -> None:
    clients = clients_of(count, seed=1)
    found = by_data(clients, clients)
    for place, mine in enumerate(clients):
        others = [one for at, one in enumerate(clients) if one is not None and at != place]
        expected = None if mine is None else plain_share(mine, others)
        if expected is None:
            assert np.isnan(found.share[place])
        else:
            assert (found.share[place], found.cell[place]) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert np.nanargmax(found.share) == 3


def test_errors_of_the_incoming_model_are_those_of_a_plain_twin() -> None:
    chance = np.random.default_rng(2)
    names = tuple(f"c{number}" for number in range(8))
    tables = chance.integers(0, 5, size=(8, 3, 3)) + 12 * np.eye(3, dtype=int)
    tables[3] = tables[3][[1, 0, 2]]
    tables[5, 2] = 0  # a class that it does not have
    turns = {
        name: {
            1: {
                "answers": [int(v) for a in range(3) for b in range(3) if table[a, b] for v in (a, b, table[a, b])],
                "rows": 40, "new": int(table.sum()),
            }
        }
        for name, table in zip(names, tables, strict=True)
    }  # fmt: skip
    found = by_answers(InsideEvidence(names, turns, {}), (1,))
    for place, mine in enumerate(tables):
        others = np.delete(tables, place, axis=0)
        total = wrong = 0.0
        for label in range(3):
            holders = others[others[:, label].sum(1) >= 3]
            if mine[label].sum() and len(holders) >= 2:
                usual = 1 - holders[:, label, label].sum() / holders[:, label].sum()
                total += mine[label].sum()
                wrong += mine[label].sum() - mine[label, label] - mine[label].sum() * usual
        assert found.share[place] == pytest.approx(wrong / total, rel=1e-9)
    assert found.pairs[3] in ((0, 1), (1, 0)) and found.share.argmax() == 3
