"""Who trains on the same few samples again and again, and where equal samples are no fault."""

from __future__ import annotations

from typing import Any

import numpy as np

from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.repeated_samples import duplicate_margins, fewer_than_said

FAULTY = 3


def clients(mine: dict[str, Any], others: dict[str, Any] | None = None, count: int = 8) -> InsideEvidence:
    """Clients that say they have 120 samples and make 12 steps a round on 20 of them."""
    usual = {"rows": 120, "batch": 20, "steps": 12, "samples": 120.0, "new": 120, "distinct": 1.0}
    turns = {
        f"site-{place}": {
            number: facts | ({} if number == 1 else {"rows": 40, "new": 0})
            for number in range(1, 7)
            for facts in [usual | (mine if place == FAULTY else others or {})]
        }
        for place in range(count)
    }
    return InsideEvidence(tuple(turns), turns, {})


def test_a_client_whose_samples_are_mostly_copies_stands_out() -> None:
    found = duplicate_margins(clients({"new": 30, "distinct": 0.74}))
    assert found[FAULTY] > 1.35 and np.delete(found, FAULTY).max() < 0.5


def test_samples_that_are_equal_by_chance_or_everywhere_are_no_copies() -> None:
    assert duplicate_margins(clients({"new": 30, "distinct": 0.74, "by_chance": 0.26}))[FAULTY] < 0.5
    assert duplicate_margins(clients({"new": 30, "distinct": 0.74}, {"new": 40, "distinct": 0.8}))[FAULTY] < 1


def test_more_samples_than_can_be_told_apart_are_not_missing() -> None:
    assert fewer_than_said(clients({"samples": 5000.0, "new": 512, "steps": 400}))[FAULTY] == 0
