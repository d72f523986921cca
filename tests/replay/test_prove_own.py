"""Proofs about a loop of the user's own, with the user's functions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import own_loop
import pytest
import torch
from processes import drainers_of, wait_until

import stethos
from stethos.cli.main import main
from stethos.errors import CaptureError, ReplayError
from stethos.replay.bundle import Bundle, open_bundle
from stethos.replay.counterfactual import trained_again
from stethos.replay.own_trainer import OwnTrainer
from stethos.replay.trainer import evaluation_in, right_answers

State = dict[str, torch.Tensor]


def right(state: State) -> tuple[Any, Any]:
    model = own_loop.build()
    model.load_state_dict(state)
    model.eval()
    x, y = (torch.cat(parts) for parts in zip(*own_loop.DATA.values(), strict=True))
    with torch.no_grad():
        return (model(x).argmax(1) == y).numpy(), y


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_loop.federate(tmp_path_factory.mktemp("own"), "own", capture="all")


@pytest.fixture
def bundle(path: Path) -> Bundle:
    return open_bundle(path)


def test_training_again_with_the_first_seed_gives_the_recorded_bits(bundle: Bundle) -> None:
    trainer = OwnTrainer(bundle, evaluator=right, trainer=own_loop.train)
    made, recorded = trained_again(bundle, trainer, 1, 3), bundle.global_state(3, "after")
    assert all(torch.allclose(made[name], recorded[name]) for name in recorded)
    other = trained_again(bundle, trainer, 1, 3, frozenset({"w1"}), 1)
    assert not other["0.weight"].equal(recorded["0.weight"])
    found = trainer.evaluate(recorded)
    assert found.right is not None and found.labels is not None and len(found.right) == len(found.labels) == 144
    assert trainer.can_train and not OwnTrainer(bundle, evaluator=right).can_train


def test_a_proof_needs_to_know_which_samples_are_right(bundle: Bundle) -> None:
    with pytest.raises(ReplayError, match="numbers only"):
        right_answers(OwnTrainer(bundle, evaluator=own_loop.evaluate), bundle.global_state(1))


FLAGS = np.array([True, False, True, True])


@pytest.mark.parametrize(
    ("made", "numbers", "has_labels"),
    [
        ({"loss": 0.5, "accuracy": 0.9}, {"loss": 0.5, "accuracy": 0.9}, None),
        ({"loss": 0.5, "right": FLAGS, "labels": [0, 1, 2, 3]}, {"accuracy": 0.75, "loss": 0.5}, True),
        (FLAGS, {"accuracy": 0.75}, False),
        (torch.from_numpy(FLAGS), {"accuracy": 0.75}, False),
        ((FLAGS, [0, 1, 2, 3]), {"accuracy": 0.75}, True),
        (0.9, {"accuracy": 0.9}, None),
        ((0.5, 0.9), {"loss": 0.5, "accuracy": 0.9}, None),
    ],
)
def test_one_evaluator_serves_every_command(made: Any, numbers: dict[str, float], has_labels: bool | None) -> None:
    found = evaluation_in(made)
    assert found.numbers == numbers
    assert (
        (found.right is None)
        if has_labels is None
        else found.right is not None and found.right.tolist() == [1, 0, 1, 1]
    )
    assert (found.labels is not None) == bool(has_labels)


@pytest.mark.parametrize("made", [{"right": [0.5, 0.5]}, {"right": [True]}, (FLAGS, [1, 2])])
def test_answers_that_make_no_sense_are_refused(made: Any) -> None:
    with pytest.raises(ReplayError, match="evaluator"):
        evaluation_in(made)


def test_the_command_takes_the_users_functions(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    functions = ["--evaluator", f"{__file__}:right", "--trainer", f"{own_loop.__file__}:train"]
    assert main(["prove", "w1", "--seeds", "2", *functions, "-t", str(path)]) in (0, 1)
    assert "without client w1: accuracy" in capsys.readouterr().out.replace("\n", " ")
    assert main(["prove", "w1", "-t", str(path)]) == CaptureError.exit_code
    assert f"--evaluator {own_loop.__name__}:evaluate" in capsys.readouterr().err


# A client that sends something other than what it trained ------------------------------------------------------


def scores(state: State, x: torch.Tensor) -> torch.Tensor:
    model = own_loop.build()
    model.load_state_dict(state)
    return model.eval()(x)


def wait_for_ever(state: State) -> None:
    while True:
        pass


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From round 4 on ward w2 sends its change turned around, six times as long."""
    torch.manual_seed(1)
    model = own_loop.build()
    directory = tmp_path_factory.mktemp("spoilt")
    with stethos.federation(
        "wards", model=model, dir=directory, run="spoilt", progress=False, capture="all", capture_bytes=1 << 28
    ) as fed:
        fed.trainer(own_loop.train)
        for rnd in fed.rounds(6):
            base = {name: value.clone() for name, value in model.state_dict().items()}
            states = []
            for client in own_loop.DATA:
                with rnd.client(client) as site:
                    state = own_loop.train(base, client, rnd.number)
                    if client == "w2" and rnd.number >= 4:
                        state = {
                            name: base[name] - 6 * (value - base[name]) if "weight" in name or "bias" in name else value
                            for name, value in state.items()
                        }
                    states.append(state)
                    site.update(state, samples=48)
            model.load_state_dict(own_loop.average(base, states, [48] * 3))
    assert fed.path is not None
    return fed.path


def test_a_bad_round_of_ones_own_is_bisected(spoilt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    functions = ["--evaluator", f"{__file__}:right", "--trainer", f"{own_loop.__file__}:train"]
    assert main(["bisect", *functions, "-t", str(spoilt)]) == 0
    shown = capsys.readouterr().out
    assert "bad round  4" in shown and "guilty     w2" in shown
    assert "inside     w2: it sent something other than what it trained" in shown
    assert main(["bisect", *functions[:2], "--json", "-t", str(spoilt)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["guilty"]["clients"] == ["w2"] and found["inside"] == []


def test_an_answer_of_ones_own_model_is_traced(
    spoilt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = open_bundle(spoilt)
    x, y = (torch.cat(parts) for parts in zip(*own_loop.DATA.values(), strict=True))
    before, after = (scores(bundle.global_state(4, when), x).argmax(1) for when in ("before", "after"))
    place = int(torch.nonzero((before == y) & (after != y))[0])
    np.save(tmp_path / "input.npy", x[place].numpy())
    words = ["blame", "--input", str(tmp_path / "input.npy"), "--output", str(int(after[place])), "-t", str(spoilt)]
    assert main([*words, "--predictor", f"{__file__}:scores"]) == 0
    assert "most responsible: client w2" in capsys.readouterr().out
    assert main(words) == CaptureError.exit_code
    assert "--predictor module:function" in capsys.readouterr().err
    assert main([*words, "--predictor", f"{__file__}:right"]) == ReplayError.exit_code
    assert main(["blame", "--input", "3", "--predictor", f"{__file__}:scores", "-t", str(spoilt)]) == 2
    assert "give a file" in capsys.readouterr().err


def test_functions_that_never_end_are_ended(spoilt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["prove", "w2", "-t", str(spoilt)]
    assert main([*words, "--timeout", "0.2", "--evaluator", f"{__file__}:wait_for_ever"]) == ReplayError.exit_code
    assert "did not come back within 0.2 s" in capsys.readouterr().err
    functions = ["--evaluator", f"{__file__}:right", "--trainer", f"{own_loop.__file__}:train_for_ever"]
    assert main([*words, "--timeout", "1.5", *functions]) == ReplayError.exit_code  # enough for the evaluator
    assert "the trainer of client 'w0' did not come back" in capsys.readouterr().err
    assert main(["prove", "w2", "--timeout", "0", "-t", str(spoilt)]) == 2


def test_another_trainer_and_another_torch_are_noted(
    spoilt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "moved"
    wait_until(lambda: not drainers_of(spoilt), "the end of packing")
    shutil.copytree(spoilt, run)
    settings = run / "capture" / "000" / "settings.json"
    told = json.loads(settings.read_text())
    told["torch"], told["trainer"]["sha256"] = "1.13.1", "0" * 64
    settings.write_text(json.dumps(told))
    functions = ["--evaluator", f"{__file__}:right", "--trainer", f"{own_loop.__file__}:train"]
    assert main(["prove", "w2", "--fast", *functions, "-t", str(run)]) in (0, 1)
    notes = capsys.readouterr().err
    assert "note: another torch version: recorded with 1.13.1" in notes and "note: changed code" in notes
