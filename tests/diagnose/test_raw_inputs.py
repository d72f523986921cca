"""Inputs that are 0 in most samples, as pixels that nobody has standardised: their weights hardly change."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from stethos import lab
from stethos.diagnose.federated.trait import Signals
from stethos.diagnose.federated.verdict import IN_COMPANY, SURE, verdicts_on
from stethos.lab.data import Data

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.faults.case import Case, play


def pixels() -> Data:
    """From 0 to 1."""
    digits = load_digits()
    return Data.of(digits.data / 16, digits.target, name="pixels")


@pytest.mark.parametrize(
    ("clients", "split", "seed"), [(8, lab.IID(), 0), (20, lab.IID(), 1), (10, lab.Dirichlet(1.0), 2)]
)
def test_honest_clients_are_not_accused(clients: int, split: lab.Split, seed: int) -> None:
    cohort = play(Case(pixels(), clients, split, (), seed)).cohort
    assert np.ptp(cohort.zero_share, axis=1).max() > 0.01  # they differ in which inputs are always 0
    assert verdicts_on(cohort, SURE, IN_COMPANY) == []


def test_noise_in_them_is_found() -> None:
    cohort = play(Case(pixels(), 10, lab.IID(), (("feature-noise", 3, 0.4),), 0)).cohort
    assert [(one.client, one.kind) for one in verdicts_on(cohort, SURE, IN_COMPANY)] == [("c3", "feature-fault")]


def test_who_leaves_other_weights_alone_stands_out_by_more_than_clients_differ() -> None:
    cohort = play(Case(pixels(), 8, lab.IID(), (), 0, rounds=2)).cohort
    cohort.zero_share[:] = [[0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.4], [0.1, 0.11, 0.09, 0.1, 0.12, 0.08, 0.1, 0.4]]
    (alone, among) = (Signals(cohort).over(at, at + 1) for at in range(2))
    zero = alone.names.index("zero")
    assert np.allclose(alone.values[:, zero], [0] * 7 + [0.3])
    assert np.allclose(among.values[:7, zero], 0) and 0.1 < among.values[7, zero] < 0.3
