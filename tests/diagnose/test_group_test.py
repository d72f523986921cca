"""Naming a faulty client from sums over groups: synthetic clients, and one federation of the lab."""

from __future__ import annotations

import numpy as np
import pytest

from stethos.diagnose.federated.group_test import decode
from stethos.federate.group_sums import SCALE, TRAITS, GroupedFederation
from stethos.lab.fault import Fault
from stethos.lab.federation import federate
from stethos.lab.group_sums import GroupedExchange


def grouped(
    clients: int = 20, size: int = 5, *, faulty: int | None, rounds: int = 20, seed: int = 1
) -> GroupedFederation:
    """Clients whose updates share a direction; the faulty one goes back instead of forth."""
    chance = np.random.default_rng(seed)
    made = GroupedFederation(tuple(map(str, range(clients))), size, seed)
    way = chance.normal(size=64)
    for number in range(rounds):
        sketches = way + chance.normal(size=(clients, 64))
        traits = chance.normal(scale=0.2, size=(clients, len(TRAITS)))
        if faulty is not None:
            sketches[faulty] -= 2 * way
            traits[faulty, TRAITS.index("cos_last")] -= 1.0
        made.add(number, list(range(clients)), sketches, traits)
    return made


@pytest.mark.parametrize("faulty", [0, 7, 19])
def test_the_client_that_spoils_its_groups_is_named(faulty: int) -> None:
    verdict = decode(grouped(faulty=faulty).rounds, 20, TRAITS)
    assert verdict.client == faulty and verdict.trait in ("cos_last", "along the others", "direction")


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_named_where_all_are_alike(seed: int) -> None:
    assert decode(grouped(faulty=None, seed=seed).rounds, 20, TRAITS).client is None


def test_two_rounds_are_too_few() -> None:
    assert decode(grouped(faulty=3, rounds=2).rounds, 20, TRAITS).client is None


def test_sums_are_those_of_whole_numbers_and_of_groups_alone() -> None:
    made = GroupedFederation(("a", "b", "c", "d"), 2)
    sketches = np.array([[0.25], [np.nan], [1e30], [-1.0]])
    (one,) = [made.add(1, [0, 1, 2, 3], sketches, np.zeros((4, len(TRAITS))))]
    assert sorted(member for part in one.members for member in part.tolist()) == [0, 1, 2, 3]
    assert all(len(part) == 2 for part in one.members) and one.sketches.shape == (2, 1)
    assert np.array_equal(one.sketches * SCALE, np.round(one.sketches * SCALE)) and np.isfinite(one.sketches).all()


def test_groups_change_from_round_to_round_and_are_the_same_for_a_seed() -> None:
    first, again = grouped(faulty=None, rounds=3), grouped(faulty=None, rounds=3)
    members = [[part.tolist() for part in one.members] for one in first.rounds]
    assert members == [[part.tolist() for part in one.members] for one in again.rounds]
    assert members[0] != members[1]


def test_a_sign_flip_in_the_lab_is_named_from_sums() -> None:
    seen = GroupedExchange(15, 4)
    federate("digits", clients=15, rounds=15, faults=[Fault("sign-flip", 6)], engine="stacked", observe=False,
             each_round=seen)  # fmt: skip
    assert decode(seen.federation.rounds, 15, TRAITS).client == 6
