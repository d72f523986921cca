"""Naming a faulty client from sums over groups: synthetic clients, and federations of the lab."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stethos
from stethos.diagnose.federated.group_test import decode
from stethos.federate.group_sums import SCALE, GroupedFederation
from stethos.federate.own_traits import TRAITS, OwnTurn, own_traits
from stethos.lab.fault import Fault
from stethos.lab.federation import federate
from stethos.lab.group_sums import GroupedExchange


def grouped(
    clients: int = 20, size: int = 5, *, faulty: int | None, rounds: int = 20, seed: int = 1, trait: str = "cos_last",
    by: float = -1.0,
) -> GroupedFederation:  # fmt: skip
    """Clients that differ a little, each in its own way, and a faulty one that differs a lot."""
    chance = np.random.default_rng(seed)
    made = GroupedFederation(tuple(map(str, range(clients))), size, seed)
    own = chance.normal(scale=0.05, size=(clients, len(TRAITS)))
    for number in range(1, rounds + 1):
        traits = own + chance.normal(scale=0.1, size=(clients, len(TRAITS)))
        if faulty is not None:
            traits[faulty, TRAITS.index(trait)] += by
        made.add(number, list(range(clients)), traits)
    return made


@pytest.mark.parametrize(("trait", "by"), [("cos_last", -1.0), ("level", 1.0), ("log_sent", 2.0), ("log_spread", 1.0)])
@pytest.mark.parametrize("faulty", [0, 7, 19])
def test_the_client_that_spoils_its_groups_is_named(faulty: int, trait: str, by: float) -> None:
    verdict = decode(grouped(faulty=faulty, trait=trait, by=by).rounds, 20, TRAITS)
    assert (verdict.client, verdict.trait) == (faulty, trait)
    assert abs(verdict.apart[faulty] - by) < 0.25


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_named_where_all_are_alike(seed: int) -> None:
    assert decode(grouped(faulty=None, seed=seed).rounds, 20, TRAITS).client is None


def test_what_is_good_is_no_fault() -> None:
    assert decode(grouped(faulty=3, trait="right", by=0.8).rounds, 20, TRAITS).client is None


@pytest.mark.parametrize("by", [-0.35, 0.35])
def test_another_direction_alone_is_no_fault(by: float) -> None:
    """As of an honest client with few samples, or with samples of its own kind."""
    assert decode(grouped(faulty=3, trait="cos_last", by=by).rounds, 20, TRAITS).client is None


def test_labels_are_wrong_where_answers_and_direction_both_say_so() -> None:
    """A client with classes of its own is answered wrongly, too, but goes where the others go."""

    def verdict(**apart: float) -> tuple[int | None, str]:
        made = grouped(faulty=None)
        for one in made.rounds:
            for name, by in apart.items():
                one.traits[:, TRAITS.index(name)] += [by * (3 in part) for part in one.members]
        found = decode(made.rounds, 20, TRAITS)
        return found.client, found.trait

    assert (
        verdict(right=-0.6)[0] is verdict(right=-0.6, cos_last=0.5)[0] is verdict(right=0.6, cos_last=-0.5)[0] is None
    )
    assert verdict(right=-0.6, cos_last=-0.5) == (3, "right")
    assert verdict(disputed=0.5, cos_last=-0.5) == (3, "disputed")


def test_inputs_that_are_spread_less_are_no_fault() -> None:
    assert decode(grouped(faulty=3, trait="log_spread", by=-1.0).rounds, 20, TRAITS).client is None


def test_two_rounds_are_too_few() -> None:
    assert decode(grouped(faulty=3, rounds=2).rounds, 20, TRAITS).client is None


def test_sums_are_those_of_whole_numbers_and_of_groups_alone() -> None:
    made = GroupedFederation(("a", "b", "c", "d"), 2)
    traits = np.zeros((4, len(TRAITS)))
    traits[:, 0] = [0.25, np.nan, 1e30, -1.0]
    one = made.add(1, [0, 1, 2, 3], traits)
    assert sorted(member for part in one.members for member in part.tolist()) == [0, 1, 2, 3]
    assert all(len(part) == 2 for part in one.members) and one.traits.shape == (2, len(TRAITS))
    assert np.array_equal(one.traits * SCALE, np.round(one.traits * SCALE)) and np.isfinite(one.traits).all()


def test_groups_change_from_round_to_round_and_are_the_same_for_a_seed() -> None:
    first, again = grouped(faulty=None, rounds=3), grouped(faulty=None, rounds=3)
    members = [[part.tolist() for part in one.members] for one in first.rounds]
    assert members == [[part.tolist() for part in one.members] for one in again.rounds]
    assert members[0] != members[1]


def test_traits_of_few_samples_are_drawn_to_what_is_usual() -> None:
    usual, place = np.full(len(TRAITS), 0.5), TRAITS.index("right")
    told = []
    for count in (4, 400):
        labels = np.arange(count) % 2
        told.append(own_traits(OwnTurn(np.ones(3), labels=labels, answers=1 - labels), usual)[place])
    assert 0.3 < told[0] < 0.5 and 0 < told[1] < 0.05


def test_traits_of_odd_updates_are_bounded() -> None:
    for sent in (np.array([np.nan, 1.0]), np.array([np.inf, 0.0]), np.zeros(2)):
        told = own_traits(OwnTurn(sent, trained=np.ones(2), last=np.ones(2)))
        assert np.isfinite(told).all() and np.abs(told).max() <= 20


def test_a_federation_of_the_lab_is_diagnosed_from_sums_alone(tmp_path: Path) -> None:
    seen = GroupedExchange(15, 4, name="digits")
    with stethos.watch(dir=tmp_path, name="sums"):
        federate("digits", clients=15, rounds=12, faults=[Fault("sign-flip", 6)], engine="stacked", observe=False,
                 each_round=seen)  # fmt: skip
    found = stethos.diagnose(stethos.open_run(tmp_path / "sums")).findings
    assert [(one.name, one.subject.clients) for one in found] == [("faulty-in-groups", ("c6",))]
