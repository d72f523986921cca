"""Where clients hardly have labels in common, nobody is accused of data that nobody else could know."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stethos import lab
from stethos.diagnose.detector import CannotTell
from stethos.diagnose.federated.accusation import weigh
from stethos.diagnose.federated.cohort import COLUMNS, Cohort, is_alone_with, shared_labels
from stethos.diagnose.federated.faulty_client import FaultyClient
from stethos.diagnose.federated.verdict import IN_COMPANY, SURE, verdicts_on

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.faults.case import Case, play


def cohort_of(counts: Any, rounds: int = 2) -> Cohort:
    """Clients with so many samples of each label, every one answered rightly."""
    matrices = np.array([np.diag(row) for row in np.array(counts, float)])
    values: dict[str, Any] = {name: np.ones((rounds, len(matrices))) for name in COLUMNS}
    values |= {"confusion": np.stack([matrices] * rounds), "bias": np.zeros((rounds, len(matrices), 0))}
    values["odd"] = np.zeros((rounds, len(matrices)))
    return Cohort(tuple(range(1, rounds + 1)), tuple(f"c{n}" for n in range(len(matrices))), values)


def slow_share(counts: list[list[int]], client: int) -> float:
    """Each sample of the client: of all samples with its label, how many others hold; in plain loops."""
    shares = []
    for label, own in enumerate(counts[client]):
        everybody = sum(row[label] for row in counts)
        shares += [(everybody - own) / everybody] * own
    return sum(shares) / len(shares)


def test_the_share_is_what_others_hold_of_a_clients_labels() -> None:
    counts = np.random.default_rng(4).integers(0, 9, (6, 5)).tolist()
    assert np.allclose(shared_labels(cohort_of(counts)), [slow_share(counts, client) for client in range(6)])


def test_who_alone_holds_a_label_shares_nothing() -> None:
    found = shared_labels(cohort_of([[9, 0, 0], [0, 5, 5], [0, 5, 5]]))
    assert found.tolist() == pytest.approx([0, 0.5, 0.5])


def test_a_label_that_hardly_anybody_else_has() -> None:
    cohort = cohort_of([[9, 0, 50], [0, 5, 1], [0, 5, 0]])
    assert [is_alone_with(cohort, 0, label) for label in range(3)] == [True, False, True]
    assert not is_alone_with(cohort, 1, 1) and not is_alone_with(cohort, 1, 2)


class AllOfTheLastToOne:
    """Everybody has the same classes but the last, which one client has beside its share of the others."""

    def __call__(self, labels: Any, clients: int, generator: np.random.Generator) -> list[Any]:
        *shares, last = np.array_split(generator.permutation(np.flatnonzero(labels < labels.max())), clients)
        return [*shares, np.concatenate([last, np.flatnonzero(labels == labels.max())])]


@pytest.mark.parametrize("seed", [0, 1])
def test_who_alone_has_a_class_is_not_accused_of_it(seed: int) -> None:
    cohort = play(Case("digits", 10, AllOfTheLastToOne(), (), seed)).cohort
    assert is_alone_with(cohort, 9, 9) and verdicts_on(cohort, SURE, IN_COMPANY) == []


def test_ten_alike_share_nine_tenths() -> None:
    assert np.allclose(shared_labels(cohort_of([[3, 4]] * 10)), 0.9)


def test_labels_that_nobody_told_are_not_known() -> None:
    cohort = cohort_of([[3, 4]] * 3)
    cohort.confusion[:, 1] = math.nan
    assert np.isnan(shared_labels(cohort)).tolist() == [False, True, False]
    cohort.confusion[:] = math.nan
    assert np.isnan(shared_labels(cohort)).all()
    assert np.isnan(shared_labels(cohort_of(np.zeros((3, 0))))).all()


@pytest.mark.parametrize("seed", [0, 3])
def test_honest_clients_with_labels_of_their_own_are_not_accused(seed: int) -> None:
    cohort = play(Case("digits", 5, lab.Dirichlet(0.1), (), seed, rounds=8)).cohort
    assert np.median(shared_labels(cohort)) < 0.5 and verdicts_on(cohort, SURE, IN_COMPANY) == []


def test_a_fault_of_updates_is_found_among_clients_with_labels_of_their_own() -> None:
    cohort = play(Case("digits", 5, lab.Dirichlet(0.1), (("sign-flip", 1, None),), 0, rounds=8)).cohort
    assert [(one.client, one.kind) for one in verdicts_on(cohort, SURE, IN_COMPANY)] == [("c1", "sign-flip")]


def test_noisy_labels_are_found_among_clients_that_share_them() -> None:
    cohort = play(Case("digits", 5, lab.Dirichlet(0.1), (("label-noise", 1, 1.0),), 0, rounds=8)).cohort
    assert ("c1", "label-noise") in [(one.client, one.kind) for one in verdicts_on(cohort, SURE, IN_COMPANY)]


def test_it_is_said_whose_data_could_not_be_compared() -> None:
    cohort = cohort_of([[9, 0, 0, 0], [0, 9, 0, 0], [0, 0, 9, 0], [0, 0, 0, 9], [0, 1, 1, 1]])
    with pytest.raises(CannotTell, match="4 of 5 clients hold most samples of their labels themselves"):
        list(FaultyClient()._findings(None, weigh(cohort), {}))
    assert list(FaultyClient()._findings(None, weigh(cohort_of([[5, 5]] * 5)), {})) == []
