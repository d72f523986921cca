"""Federations of six sets that were played once: what is made of them must not get worse unseen."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from stethos.diagnose.federated.accusation import ALARM_RATE, weighed_in
from stethos.diagnose.federated.unlikeness import AT_TIMES, MOST
from stethos.diagnose.federated.weighing import INSIDE, UP_TO_ONE, load_weights
from stethos.diagnose.window import Window
from stethos.store.frame import Frame

KEPT = Path(__file__).parent.parent / "fixtures" / "federations.json.gz"


@cache
def kept() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(gzip.decompress(KEPT.read_bytes()))
    return found


def test_faulty_clients_of_kept_federations_are_accused_and_honest_ones_are_not() -> None:
    weights = load_weights("inside")
    exact, clean, wrong, right = [], [], 0, 0
    for one in kept()["numbers"]:
        nothing = [0.0] * len(one["clients"])  # of what was not looked at when they were kept
        chances = weights.probabilities({name: np.array(one["numbers"].get(name, nothing)) for name in INSIDE})
        accused = {
            client for client, sure in zip(one["clients"], chances, strict=True) if sure >= weights.cut(ALARM_RATE)
        }
        faulty = set(one["faulty"])
        (exact if faulty else clean).append(accused == faulty)
        wrong, right = wrong + len(accused - faulty), right + len(accused & faulty)
    assert len(exact) + len(clean) >= 240
    assert np.mean(exact) >= 0.6  # without rules and what is exact
    assert np.mean(clean) >= 0.97
    assert right >= 0.95 * (right + wrong)


def test_the_same_is_made_of_what_was_recorded() -> None:
    found = []
    for one in kept()["whole"]:
        (weighed,) = weighed_in(Window({name: Frame(columns) for name, columns in one["rows"].items()})).values()
        found.append((set(one["faulty"]), {verdict.client for verdict in weighed.accused()}))
    faulty = [accused == truth for truth, accused in found if truth]
    assert len(found) >= 12 and sum(len(accused - truth) for truth, accused in found) <= 1
    assert sum(faulty) >= 0.5 * len(faulty)


def test_updates_alone_accuse_some_faulty_clients_and_name_what_is_exact() -> None:
    found = []
    for one in kept()["whole"]:
        shown = {name: Frame(columns) for name, columns in one["rows"].items() if name != "evidence"}
        (weighed,) = weighed_in(Window(shown)).values()
        found.append((one, {verdict.client: verdict for verdict in weighed.accused()}))
    assert sum(len(accused.keys() - set(one["faulty"])) for one, accused in found) == 0
    assert sum(accused.keys() == set(one["faulty"]) for one, accused in found if one["faulty"]) >= 5  # 4 by networks
    riders = [accused for one, accused in found if str(one["case"]["fault"]).startswith("free-rider")]
    assert {verdict.kind for accused in riders for verdict in accused.values()} == {"free-rider"}


def test_a_lower_alarm_rate_asks_for_more() -> None:
    weights = load_weights("inside")
    cuts = [weights.cut(rate) for rate in (0.002, 0.01, 0.02, 0.1)]
    assert cuts == sorted(cuts, reverse=True) and 0.1 < cuts[-1] < cuts[0] < 1


def test_how_honest_sites_differ_accuses_nobody_however_far_it_is() -> None:
    weights = load_weights("inside")
    numbers = {name: np.zeros(1) for name in INSIDE}
    for name in (*UP_TO_ONE, "loss", "direction", "norm", "history", "labels", "mixed", "following"):
        assert weights.probabilities({**numbers, name: np.full(1, MOST)})[0] < weights.cut(ALARM_RATE)


def test_what_is_exact_accuses_by_itself() -> None:
    weights = load_weights("inside")
    numbers = {name: np.zeros(1) for name in INSIDE}
    for name in ("rest", "uncleared"):
        far = {name: np.full(1, MOST), f"{name}{AT_TIMES}": np.full(1, MOST)}
        assert weights.probabilities({**numbers, **far})[0] >= weights.cut(ALARM_RATE)
