"""Wrong labels by what the global model answers: only what it says when it knows something counts."""

from __future__ import annotations

import numpy as np

from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.inside_label import by_answers

CLASSES, FAULTY = 3, 5


def evidence(knows: dict[int, float], wrong: float) -> InsideEvidence:
    """30 answers per client and round; the model knows a share of the labels, one client has a share of wrong ones."""
    chance = np.random.default_rng(2)
    turns = {}
    for place in range(8):
        mine = {}
        for number, share in knows.items():
            truth = chance.integers(0, CLASSES, 30)
            said = np.where(chance.random(30) < share, truth, chance.integers(0, CLASSES, 30))
            is_wrong = (chance.random(30) < wrong) & (place == FAULTY)
            label = np.where(is_wrong, (truth + 1) % CLASSES, truth)
            cells, counts = np.unique(np.stack([label, said], 1), axis=0, return_counts=True)
            answers = np.column_stack([cells, counts]).reshape(-1).tolist()
            mine[number] = {"answers": answers, "new": 90 if number == min(knows) else 0}
        turns[f"site-{place}"] = mine
    return InsideEvidence(tuple(turns), turns, {})


def test_rounds_in_which_the_model_knew_nothing_do_not_dilute_those_in_which_it_did() -> None:
    late = evidence({**dict.fromkeys(range(1, 7), 0.05), **dict.fromkeys(range(7, 10), 0.95)}, 0.4)
    found = by_answers(late, late.rounds)
    assert found.share[FAULTY] > 0.25 and np.delete(found.share, FAULTY).max() < 0.1
    assert (found.share / found.error)[FAULTY] > 3


def test_a_model_that_never_learns_says_nothing() -> None:
    never = evidence(dict.fromkeys(range(1, 9), 0.0), 0.4)
    assert not np.isfinite(by_answers(never, never.rounds).share).any()


def test_three_samples_of_a_class_say_little_of_how_much_clients_differ() -> None:
    some = evidence(dict.fromkeys(range(1, 7), 0.95), 0.4)
    turns = {name: dict(mine) for name, mine in some.turns.items()}
    turns |= {f"few-{place}": {1: {"answers": [0, 0, 2, 0, 1, 1 + place % 2], "new": 3}} for place in range(4)}
    found = by_answers(beside := InsideEvidence(tuple(turns), turns, {}), beside.rounds)
    assert found.share[FAULTY] > 8 * found.error[FAULTY]
