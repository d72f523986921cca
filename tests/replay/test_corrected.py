"""Runs with corrections: whatever was done about their updates is done again, bit by bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stethos
from stethos import lab
from stethos.act.correction import Correction, Corrector
from stethos.cli.main import main
from stethos.errors import CaptureError
from stethos.lab.replay import trainer_of
from stethos.replay.bundle import Bundle, open_bundle
from stethos.replay.corrections import corrections_in
from stethos.replay.counterfactual import HistoryChange, carry_on, trained_again
from stethos.replay.history import recorded_rounds
from stethos.replay.own_trainer import OwnTrainer
from stethos.replay.repeat import repeat_aggregation
from stethos.replay.trainer import aggregated

State = Mapping[str, torch.Tensor]
ROUNDS = 6
SETUP: dict[str, Any] = {
    "rounds": ROUNDS, "capture": "all", "engine": "stacked", "progress": False, "seed": 3,
}  # fmt: skip


def are_same(one: State, other: State) -> bool:
    return all(torch.equal(one[name], other[name]) for name in other)


class NoReview(Corrector):
    """Lets every update pass, so that only the rollback is left."""

    def decide(self, *args: Any, **kwargs: Any) -> Correction:
        return Correction()


def three_faults(directory: Path, clients: int) -> Bundle:
    faults = [
        lab.Fault("nan", "c2", start=2), lab.Fault("scaling", "c4", strength=10.0), lab.Fault("sign-flip", "c6")
    ]  # fmt: skip
    path = lab.federate("digits", clients=clients, faults=faults, correct="on", dir=directory, run="a", **SETUP).path
    assert path is not None
    return open_bundle(path)


@pytest.fixture(scope="module")
def treated(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """NaN is dropped, a scaled update shortened, a turned one left out."""
    return three_faults(tmp_path_factory.mktemp("treated"), clients=10)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The same among fewer: more are accused than may be left out, so the median is taken."""
    return three_faults(tmp_path_factory.mktemp("crowded"), clients=8)


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Nobody stops the NaN of round 3; the model goes back."""
    directory = tmp_path_factory.mktemp("rolled")
    fault = lab.Fault("nan", "c2", start=3, end=3)
    corrector = NoReview("on")
    path = lab.federate("digits", clients=6, faults=[fault], correct=corrector, dir=directory, run="b", **SETUP).path
    assert path is not None
    return open_bundle(path)


def test_treatments_are_captured_as_they_were(treated: Bundle, crowded: Bundle) -> None:
    corrections = [treated.corrections(number) for number in range(1, ROUNDS + 1)]
    assert corrections[1].of("c2") == (0.0, 1.0)
    assert all(one.of("c4")[1] < 0.5 for one in corrections)
    assert corrections[-1].of("c6") == (0.0, 1.0)
    assert all(one.of("c1") == (1.0, 1.0) and not one.is_robust for one in corrections)
    assert crowded.corrections(ROUNDS).is_robust and crowded.corrections(ROUNDS).of("c6") == (1.0, 1.0)


@pytest.mark.parametrize("name", ["treated", "crowded", "rolled_back"])
def test_every_round_of_a_corrected_run_is_repeated_bit_by_bit(name: str, request: pytest.FixtureRequest) -> None:
    bundle: Bundle = request.getfixturevalue(name)
    trainer = trainer_of(bundle)
    assert all(repeat_aggregation(bundle, trainer, number).is_exact for number in bundle.rounds)
    for made in carry_on(bundle, trainer, 1, HistoryChange()):
        assert are_same(made.state, bundle.global_state(made.round, "after"))


@pytest.mark.parametrize("name", ["treated", "crowded", "rolled_back"])
def test_a_proof_starts_from_the_run_as_it_was(name: str, request: pytest.FixtureRequest) -> None:
    bundle: Bundle = request.getfixturevalue(name)
    trainer = trainer_of(bundle, is_fast=True)
    again = trained_again(bundle, trainer, 1, ROUNDS)
    assert are_same(again, bundle.global_state(ROUNDS, "after"))
    for one in recorded_rounds(bundle):
        if one.is_sound:
            assert are_same(aggregated(trainer, one), bundle.global_state(one.number, "after"))


def test_whoever_was_quarantined_is_not_missed(treated: Bundle) -> None:
    trainer = trainer_of(treated, is_fast=True)
    last = recorded_rounds(treated, ROUNDS)[0]
    assert are_same(aggregated(trainer, last, frozenset({"c6"})), aggregated(trainer, last))
    assert not are_same(aggregated(trainer, last, frozenset({"c1"})), aggregated(trainer, last))


def test_a_proof_says_that_corrections_dealt_with_the_accused(
    treated: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    run = treated.place.path.parent.parent
    assert main(["prove", "c6", "--fast", "-t", str(run)]) in (0, 1)
    assert "corrections dealt with client c6 in 5 of 6 rounds" in capsys.readouterr().err
    assert main(["prove", "c1", "--fast", "-t", str(run)]) in (0, 1)
    assert "corrections" not in capsys.readouterr().err


def test_a_rollback_is_not_repeated_where_its_cause_was_left_out(rolled_back: Bundle) -> None:
    assert rolled_back.corrections(3).is_rolled_back
    assert are_same(rolled_back.global_state(3, "after"), rolled_back.global_state(3))
    trainer = trainer_of(rolled_back)
    (made,) = carry_on(rolled_back, trainer, 3, HistoryChange(without=frozenset({"c2"})), until=3)
    assert not are_same(made.state, rolled_back.global_state(3)) and made.numbers["loss"] < 3
    (still,) = carry_on(rolled_back, trainer, 3, HistoryChange(without=frozenset({"c1"})), until=3)
    assert are_same(still.state, rolled_back.global_state(3))


def wards(directory: Path, *, sends_changes: bool, spoils: str) -> Path:
    """A loop of the user's own; client w4 is spoilt in round 3, and `rnd.aggregate()` or a plain mean is taken."""
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    draw = torch.Generator().manual_seed(1)
    with stethos.federation(
        "wards", model=model, dir=directory, run="wards", progress=False, correct="on", capture="all"
    ) as fed:
        for rnd in fed.rounds(4):
            base = {name: value.clone() for name, value in model.state_dict().items()}
            states = []
            for number in range(6):
                with rnd.client(f"w{number}") as site:
                    change = {name: 0.01 * torch.randn(value.shape, generator=draw) for name, value in base.items()}
                    if number == 4 and rnd.number == 3:
                        change = {
                            name: value * (float("nan") if spoils == "nan" else 50) for name, value in change.items()
                        }
                    states.append({name: base[name] + change[name] for name in base})
                    site.update(change if sends_changes else states[-1], samples=10 + number, delta=sends_changes)
            if spoils == "nan":
                mean: dict[str, torch.Tensor] = {name: sum(one[name] for one in states) / 6 for name in base}  # type: ignore[misc]
                model.load_state_dict(mean)
            else:
                model.load_state_dict(rnd.aggregate())
    assert fed.path is not None
    return fed.path


def flags(state: State) -> Any:
    return (state["weight"] > 0).flatten().numpy()


@pytest.mark.parametrize("sends_changes", [False, True])
def test_a_loop_of_ones_own_is_repeated_with_its_corrections(tmp_path: Path, sends_changes: bool) -> None:
    bundle = open_bundle(wards(tmp_path, sends_changes=sends_changes, spoils="large"))
    weight, scale = bundle.corrections(3).of("w4")
    assert weight == 1 and scale < 0.1
    found = [repeat_aggregation(bundle, OwnTrainer(bundle), number) for number in bundle.rounds]
    assert all(one.is_exact for one in found)
    trainer = OwnTrainer(bundle, evaluator=flags)
    if not sends_changes:
        assert all(
            are_same(aggregated(trainer, one), bundle.global_state(one.number, "after"))
            for one in recorded_rounds(bundle)
        )


def test_a_rollback_of_a_loop_of_ones_own_is_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wards(tmp_path, sends_changes=False, spoils="nan")
    bundle = open_bundle(path)
    assert bundle.corrections(3).is_rolled_back and not bundle.corrections(2).is_rolled_back
    assert are_same(bundle.global_state(3, "after"), bundle.global_state(3))
    assert main(["replay", "-t", str(path), "--all"]) != 0  # there is no trainer
    assert main(["replay", "-t", str(path), "--round", "3"]) == 0
    assert "the aggregation of round 3: the recorded bits" in capsys.readouterr().out


@pytest.mark.parametrize("damage", [{"c1": [1]}, {"c1": ["x", 1]}, {"c1": [float("nan"), 1]}, [1, 2], {"c1": [-1, 1]}])
def test_corrections_that_make_no_sense_are_refused(damage: Mapping[str, Sequence[Any]]) -> None:
    with pytest.raises(CaptureError, match="corrections make no sense"):
        corrections_in({"round": 3, "treatments": damage})
