"""Proofs about a loop of the user's own, with the user's functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import own_loop
import pytest
import torch

from stethos.cli.main import main
from stethos.errors import CaptureError, ReplayError
from stethos.replay.bundle import Bundle, open_bundle
from stethos.replay.own_world import OwnWorld

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
    world = OwnWorld(bundle, evaluator=right, trainer=own_loop.train)
    made, recorded = world.trained(1, 3, frozenset(), 0, lambda number: None), bundle.global_state(3, "after")
    assert made is not None and all(torch.allclose(made[name], recorded[name]) for name in recorded)
    other = world.trained(1, 3, frozenset({"w1"}), 1, lambda number: None)
    assert other is not None and not other["0.weight"].equal(recorded["0.weight"])
    assert len(world.right(recorded)) == len(world.labels) == 144
    assert OwnWorld(bundle, evaluator=right).trained(1, 3, frozenset(), 0, lambda number: None) is None


def test_an_evaluator_that_counts_for_itself_is_refused(bundle: Bundle) -> None:
    with pytest.raises(ReplayError, match="one per sample"):
        OwnWorld(bundle, evaluator=own_loop.evaluate).right(bundle.global_state(1))


def test_the_command_takes_the_users_functions(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    functions = ["--evaluator", f"{__file__}:right", "--trainer", f"{own_loop.__file__}:train"]
    assert main(["prove", "w1", "--seeds", "2", *functions, "-t", str(path)]) in (0, 1)
    assert "without client w1: accuracy" in capsys.readouterr().out.replace("\n", " ")
    assert main(["prove", "w1", "-t", str(path)]) == CaptureError.exit_code
    assert "--evaluator module:function" in capsys.readouterr().err
