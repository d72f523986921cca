"""What corrections do about updates, and what they never do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from stethos import lab
from stethos.act.action import CorrectionLimits, parse_mode
from stethos.act.aggregate import average, treated
from stethos.act.correction import Corrector
from stethos.act.rollback import RollbackRule
from stethos.errors import UsageError
from stethos.federate.fingerprint import UpdateBuffer
from stethos.federate.site import Update

SHAPE = (6, 20)


def base() -> dict[str, np.ndarray]:
    return {"weight": np.zeros(SHAPE, np.float32), "bias": np.zeros(SHAPE[0], np.float32)}


def updates(chance: np.random.Generator, clients: int = 9, *, spoil: dict[int, str] | None = None) -> list[Update]:
    """Clients that move the same way, more or less; some are spoilt."""
    direction = chance.normal(size=SHAPE)
    found = []
    for number in range(clients):
        weight = (direction + 0.5 * chance.normal(size=SHAPE)).astype(np.float32)
        match (spoil or {}).get(number):
            case "nan":
                weight[0, 0] = np.nan
            case "large":
                weight *= 50
            case "turned":
                weight *= -1
        bias = weight.mean(1)
        found.append(Update(f"c{number}", {"weight": weight, "bias": bias}, samples=100))
    return found


def played(corrector: Corrector, rounds: int, spoil: dict[int, str], clients: int = 9) -> list[list[Update]]:
    chance = np.random.default_rng(1)
    kept = []
    for number in range(1, rounds + 1):
        sent = updates(chance, clients, spoil=spoil)
        kept.append(treated(sent, base(), corrector.review(number, base(), sent)))
    return kept


def names(given: Sequence[Update]) -> set[str]:
    return {update.client for update in given}


def test_an_update_with_nan_is_left_out_at_once() -> None:
    corrector = Corrector("on")
    kept = played(corrector, 1, {3: "nan"})
    assert names(kept[0]) == {f"c{number}" for number in range(9)} - {"c3"}
    (action,) = corrector.actions
    assert (action.what, action.client, action.state) == ("drop-update", "c3", "active")
    assert np.isnan(action.norm_before) and np.isfinite(action.norm_after)


def test_an_update_far_too_large_is_shortened_and_its_client_kept() -> None:
    corrector = Corrector("on")
    kept = played(corrector, 1, {2: "large"})
    lengths = {one.client: float(np.linalg.norm(one.state["weight"])) for one in kept[0]}
    assert lengths["c2"] < 1.5 * np.median(list(lengths.values()))
    assert [action.what for action in corrector.actions] == ["clip-update"]


def test_honest_updates_are_the_very_same_objects() -> None:
    sent = updates(np.random.default_rng(2))
    made = Corrector("on").review(1, base(), sent)
    assert all(one is other for one, other in zip(treated(sent, base(), made), sent, strict=True))


def test_a_dry_run_says_what_it_would_do_and_does_nothing() -> None:
    corrector = Corrector("dry-run")
    kept = played(corrector, 2, {3: "nan", 4: "large"})
    assert all(len(round_) == 9 for round_ in kept)
    assert {(one.what, one.state) for one in corrector.actions} == {
        ("drop-update", "proposed"),
        ("clip-update", "proposed"),
    }
    assert all("would have" in one.effect for one in corrector.actions)


def test_off_looks_at_nothing() -> None:
    corrector = Corrector("off")
    assert all(len(round_) == 9 for round_ in played(corrector, 2, {3: "nan"})) and not corrector.actions


def test_more_than_the_allowed_share_is_never_weighed_down() -> None:
    corrector = Corrector("on", limits=CorrectionLimits(clients=0.2, new_per_round=0.2))
    played(corrector, 3, {1: "large", 2: "large", 3: "large"}, clients=10)
    acted = {one.client for one in corrector.actions if one.state != "refused"}
    assert len(acted - {None}) <= 2
    assert any(one.state == "refused" and "bounds" in one.reason for one in corrector.actions)


def test_an_action_ends_when_its_cause_does_and_is_recorded_as_over() -> None:
    told = []
    corrector = Corrector("on", tell=lambda action: told.append((action.number, action.state, action.last)))
    chance = np.random.default_rng(3)
    for number in range(1, 6):
        sent = updates(chance, spoil={3: "nan"} if number <= 2 else {})
        corrector.review(number, base(), sent)
    assert told == [(1, "active", 1), (1, "active", 2), (1, "over", 2)]


def test_an_action_that_was_taken_back_is_not_begun_again() -> None:
    undone: set[int] = set()
    corrector = Corrector("on", undone=lambda: undone)
    chance = np.random.default_rng(4)
    corrector.review(1, base(), updates(chance, spoil={2: "large"}))
    undone.add(1)
    made = corrector.review(2, base(), updates(chance, spoil={2: "large"}))
    assert made.treatments == {} and corrector.actions[0].state == "undone" and len(corrector.actions) == 1


def test_a_mean_is_weighted_and_a_robust_one_minds_nobody() -> None:
    sent = [
        Update("a", {"w": np.array([0.0])}, samples=1),
        Update("b", {"w": np.array([1.0])}, samples=3),
        Update("c", {"w": np.array([1e9])}, samples=1),
    ]
    assert average(sent[:2], {})["w"] == pytest.approx(0.75)
    assert average(sent, {}, is_robust=True)["w"] == 1.0
    with pytest.raises(UsageError):
        average([], {})


def test_the_rollback_rule_wants_two_witnesses_unless_it_is_exact() -> None:
    def accustomed() -> RollbackRule:
        rule = RollbackRule()
        for _ in range(3):
            assert rule.complaint(odd=0, loss=0.5, drift=1.0) == ""
        return rule

    assert accustomed().complaint(odd=0, loss=5.0, drift=1.1) == ""
    assert accustomed().complaint(odd=0, loss=0.6, drift=9.0) == ""
    assert "jumped" in accustomed().complaint(odd=0, loss=5.0, drift=9.0)
    assert "NaN" in RollbackRule().complaint(odd=2, loss=None, drift=None)


def test_rollbacks_are_few() -> None:
    corrector = Corrector("on")
    answers = [corrector.settle(number, odd=1, loss=None, drift=None) for number in range(1, 7)]
    assert answers == [True] * 3 + [False] * 3
    assert [one.state for one in corrector.actions].count("refused") == 3


def test_a_rollback_that_nobody_can_carry_out_is_told_as_refused() -> None:
    told = []
    corrector = Corrector("on", tell=lambda action: told.append((action.number, action.state, action.effect)))
    for number in (1, 2):
        assert corrector.settle(number, odd=1, loss=None, drift=None)
    corrector.refuse_last("there is no module")
    assert [one.state for one in corrector.actions] == ["active", "refused"]
    assert told[-1] == (2, "refused", "there is no module")


def test_a_mode_that_does_not_exist_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="dry-run"):
        parse_mode("yes")


LIES = ("loss", "samples", "collusion", "framing")


@pytest.mark.parametrize("lie", LIES)
def test_fewer_than_a_third_of_liars_cause_no_action_on_honest_clients(lie: str) -> None:
    """T11: liars report false losses or samples, or send the same update; honest clients stay as they are."""
    clients, liars = 10, 3
    chance = np.random.default_rng(LIES.index(lie))
    corrector = Corrector("on")
    last: np.ndarray | None = None
    for number in range(1, 9):
        sent = updates(chance, clients)
        facts = {one.client: {"entry_loss": 0.5 + 0.05 * chance.normal(), "exit_loss": 0.4} for one in sent}
        for place in range(liars):
            state = dict(sent[place].state)
            if lie == "loss":
                facts[f"c{place}"] = {"entry_loss": 1e-6, "exit_loss": 1e-6}
            elif lie == "samples":
                sent[place] = Update(f"c{place}", state, samples=10**9)
            elif lie == "collusion":
                state["weight"] = sent[0].state["weight"] * 3.0
                sent[place] = Update(f"c{place}", state, samples=100)
            elif last is not None:  # they copy one honest client's last update, to make it look like one of them
                state["weight"] = last
                sent[place] = Update(f"c{place}", state, samples=100)
        last = sent[-1].state["weight"]
        corrector.review(number, base(), sent, facts)
    touched = {one.client for one in corrector.actions if one.state != "refused" and one.client is not None}
    assert touched <= {f"c{place}" for place in range(liars)}


FAULTS = [lab.Fault("nan", clients="c2", start=4, end=6), lab.Fault("scaling", clients="c7", start=3)]
SETUP = {"clients": 10, "rounds": 16, "split": lab.Dirichlet(0.7), "seed": 2, "engine": "stacked", "observe": False}


def test_a_federation_with_nan_and_scaling_ends_as_a_clean_one() -> None:
    clean = lab.federate("digits", **SETUP)
    corrector = Corrector("on")
    mended = lab.federate("digits", faults=FAULTS, correct=corrector, **SETUP)
    assert lab.federate("digits", faults=FAULTS, **SETUP).accuracy < 0.5
    assert mended.accuracy > clean.accuracy - 0.02
    assert {action.client for action in corrector.actions} == {"c2", "c7"}
    assert ("drop-update", "c2", 4, 6) in {(one.what, one.client, one.first, one.last) for one in corrector.actions}


def test_without_correction_and_in_a_dry_run_the_bits_are_the_same() -> None:
    plain = lab.federate("digits", faults=FAULTS[1:], **SETUP)
    dry = lab.federate("digits", faults=FAULTS[1:], correct="dry-run", **SETUP)
    assert all(plain.state[name].equal(dry.state[name]) for name in plain.state)


def test_a_clean_federation_stays_as_it_is() -> None:
    plain, corrected = (lab.federate("digits", correct=mode, **SETUP) for mode in ("off", "on"))
    assert all(plain.state[name].equal(corrected.state[name]) for name in plain.state)


def test_a_recorded_federation_decides_the_same_from_one_fingerprint_of_each_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = SETUP | {"rounds": 8}
    alone = lab.federate("digits", faults=FAULTS, correct="on", **setup)
    added: list[str] = []
    add = UpdateBuffer.add
    monkeypatch.setattr(UpdateBuffer, "add", lambda self, *args: (added.append(args[1]), add(self, *args))[1])
    recorded = lab.federate("digits", faults=FAULTS, correct="on", dir=tmp_path, **setup | {"observe": True})
    assert len(added) == 10 * 8
    assert all(alone.state[name].equal(recorded.state[name]) for name in alone.state)


def test_when_every_update_is_spoilt_the_model_stays() -> None:
    everyone = [lab.Fault("nan", clients=list(range(10)), start=3)]
    result = lab.federate("digits", faults=everyone, correct="on", **SETUP)
    assert result.accuracy == result.accuracies[1]
