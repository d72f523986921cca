"""Repeating what was recorded: the same bits, or the step, the layer and the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import own_loop
import pytest
import torch
from own_loop import GUILTY

from stethos import lab
from stethos.cli.main import main
from stethos.errors import CaptureError, ReplayError
from stethos.lab.replay import trainer_of
from stethos.replay.bundle import Bundle, open_bundle
from stethos.replay.counterfactual import HistoryChange, carry_on
from stethos.replay.own_trainer import OwnTrainer
from stethos.replay.repeat import Repetition, repeat_aggregation, repeat_training

FAULTS = [
    lab.Fault("sign-flip", clients="c3", start=2),
    lab.Fault("stale", clients="c1", strength=2),
    lab.Fault("label-noise", clients="c4"),
    lab.Fault("free-rider-delta", clients="c5"),
    lab.Fault("crash", clients="c2", start=3),
    lab.Fault("nan", clients="c0", start=4, strength=0.1),
]


@pytest.mark.parametrize(
    "choices",
    [
        {"engine": "loop", "strategy": "fedadam", "model": "mlp", "optimizer": "adam"},
        {"engine": "loop", "strategy": lab.FedProx(mu=0.3), "model": "cnn", "split": lab.Dirichlet(0.5)},
        {"engine": "stacked", "strategy": "trimmed-mean", "model": "mlp", "split": lab.Shards(3)},
        {"engine": "stacked", "strategy": "median", "model": "logistic", "optimizer": "adam", "participation": 0.7},
    ],
    ids=lambda choices: f"{choices['engine']}-{choices['strategy']}",
)
def test_every_piece_of_a_lab_run_repeats_bit_by_bit(choices: dict[str, Any], tmp_path: Path) -> None:
    result = lab.federate(
        "digits", rounds=4, clients=6, capture="all", dir=tmp_path, run="l", progress=False, faults=FAULTS, **choices
    )  # fmt: skip
    assert result.path is not None
    bundle = open_bundle(result.path)
    again = trainer_of(bundle)
    for record in result.history:
        found = [repeat_aggregation(bundle, again, record.round)]
        found += [repeat_training(bundle, again, record.round, client) for client in bundle.clients(record.round)]
        assert [one.what for one in found if not one.is_exact] == [] and len(found) > 3
        numbers = again.evaluate(bundle.global_state(record.round, "after")).numbers
        assert numbers == {"loss": record.loss, "accuracy": record.accuracy} or record.loss != record.loss


def test_data_of_ones_own_must_be_given_again(tmp_path: Path) -> None:
    points = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    data = lab.Data.of(points, points[:, 0] > 0, name="plane")
    result = lab.federate(data, rounds=1, clients=3, capture="all", dir=tmp_path, run="l", progress=False)
    assert result.path is not None
    bundle = open_bundle(result.path)
    with pytest.raises(CaptureError, match="data of its own, 'plane'"):
        trainer_of(bundle)
    assert repeat_training(bundle, trainer_of(bundle, data=data), 1, "c1").is_exact
    other = lab.Data.of(points + 1, points[:, 0] > 0, name="plane")
    with pytest.raises(ReplayError, match="not those of the recording"):
        trainer_of(bundle, data=other)


def test_a_loop_of_ones_own_repeats_bit_by_bit(own_path: Path) -> None:
    bundle = open_bundle(own_path)
    again = OwnTrainer(bundle, trainer=own_loop.train, evaluator=own_loop.evaluate, aggregator=own_loop.average)
    torch.manual_seed(99)
    for number in bundle.rounds:
        assert repeat_aggregation(bundle, again, number).is_exact
        for client in bundle.clients(number):
            assert repeat_training(bundle, again, number, client).is_exact
        assert again.evaluate(bundle.global_state(number, "after")).numbers == bundle.manifest(number)["evaluation"]
    drawn = torch.rand(1)
    torch.manual_seed(99)
    assert torch.equal(drawn, torch.rand(1))  # the caller's own numbers were left alone


def repeated(path: Path, trainer: Any, settings: dict[str, Any] | None = None, **options: Any) -> Repetition:
    bundle = open_bundle(path)
    if settings:
        bundle.place.settings.write_text(json.dumps({**bundle.settings, **settings}))
        bundle = open_bundle(path)
    return repeat_training(bundle, OwnTrainer(bundle, trainer=trainer, **options), 2, "w1")


@pytest.mark.parametrize(
    ("trainer", "settings", "reason"),
    [
        (own_loop.train_unseeded, {}, "an unseeded generator"),
        (own_loop.train_with_rounding, {}, "rounding"),
        (own_loop.train_on_other_data, {}, "changed data or code"),
        (own_loop.train_on_other_data, {"torch": "1.0"}, "another torch version: recorded with 1.0"),
        (own_loop.train_on_other_data, {"threads": 2}, "thread count"),
        (own_loop.train_on_other_data, {"trainer": {"name": "x", "sha256": "0"}}, "changed code"),
    ],
)
def test_what_is_not_the_same_is_explained(
    own_path: Path, tmp_path: Path, trainer: Any, settings: dict[str, Any], reason: str
) -> None:
    path = Path(shutil.copytree(own_path, tmp_path / "run"))
    found = repeated(path, trainer, settings)
    assert not found.is_exact and found.layers[0].layer == "0.weight" and found.layers[0].elements > 0
    assert any(words.startswith(reason) for words in found.reasons), found.reasons


def test_the_step_at_which_it_parts_is_named(bundle: Bundle) -> None:
    turn = bundle.manifest(2)["clients"][1]
    turn["losses"][4] += 1e-6
    again = trainer_of(bundle)
    bundle.manifest(2)["clients"][1]["state"] = bundle.manifest(3)["clients"][1]["state"]
    found = repeat_training(bundle, again, 2, "c1")
    assert (found.is_exact, found.step, found.steps) == (False, 5, 8)


def test_a_trainer_that_raises_or_never_ends_is_an_error(own_path: Path) -> None:
    with pytest.raises(ReplayError, match=r"client 'w1' raised ValueError: no such ward at .*own_loop.py"):
        repeated(own_path, own_loop.train_badly)
    with pytest.raises(ReplayError, match=r"did not come back within 0\.2 s"):
        repeated(own_path, own_loop.train_for_ever, timeout_s=0.2)
    with pytest.raises(ReplayError, match="no trainer was given") as error:
        repeated(own_path, None)
    assert "own_loop:train" in error.value.hint
    bundle = open_bundle(own_path)
    with pytest.raises(ReplayError, match="no evaluator was given"):
        OwnTrainer(bundle).evaluate(bundle.global_state(1))


def test_without_the_guilty_client_accuracy_recovers(bundle: Bundle) -> None:
    carried = list(carry_on(bundle, trainer_of(bundle), 3, HistoryChange(frozenset({GUILTY}))))
    assert [one.round for one in carried] == [3, 4, 5, 6, 7, 8]
    assert carried[-1].numbers["accuracy"] > carried[-1].recorded["accuracy"] + 0.2
    nothing = list(carry_on(bundle, trainer_of(bundle), 3, HistoryChange(), until=5))
    assert all(one.numbers == one.recorded for one in nothing)  # with no change, history repeats itself


def run_command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_a_link_that_leads_nowhere_is_no_captured_object(
    lab_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(lab_path, tmp_path / "copy")
    whole = json.loads(run_command(capsys, "replay", "-t", copy, "--json")[1])
    (copy / "capture" / "000" / "objects" / f"{'0' * 64}.packed").symlink_to(tmp_path / "nowhere")
    status, out, err = run_command(capsys, "replay", "-t", copy, "--json")
    assert (status, err, json.loads(out)["bytes"]) == (0, "", whole["bytes"])


def test_the_command_repeats_a_round(lab_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run_command(capsys, "replay", "-t", lab_path)
    assert status == 0 and "rounds 1 to 8, capture='all'" in out
    status, out, _ = run_command(capsys, "replay", "-t", lab_path, "--round", "4", "--all")
    assert status == 0 and "7 of 7 repetitions gave the recorded bits" in out
    status, out, _ = run_command(capsys, "replay", "-t", lab_path, "--round", "4", "--client", "c1", "--json")
    (one,) = json.loads(out)
    assert (status, one["is_exact"], one["client"]) == (0, True, "c1")


def test_the_command_says_what_is_wrong(own_path: Path, lab_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, code, text in (
        (["--round", "9"], 7, "round 9 was not captured"),
        (["--client", "c1"], 2, "add --round N"),
        (["--round", "2", "--client", "c77"], 7, "took no part in round 2"),
    ):
        status, _, err = run_command(capsys, "replay", "-t", lab_path, *words)
        assert status == code and text in err
    status, out, _ = run_command(
        capsys, "replay", "-t", own_path, "--round", "2", "--client", "w1", "--trainer", "own_loop:train_unseeded"
    )
    assert status == 1 and "not the recorded bits" in out and "parts at step" in out and "likely: an unseeded" in out
    for trainer, text in (
        ("own_loop", "module:function"),
        ("no_such:f", "cannot import"),
        ("own_loop:DATA", "name a function"),
    ):
        status, _, err = run_command(
            capsys, "replay", "-t", own_path, "--round", "2", "--client", "w1", "--trainer", trainer
        )
        assert status == 2 and text in err
