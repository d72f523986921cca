"""Two runs of one program, equal or with one thing changed at one step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import stethos
from stethos.cli.main import main
from stethos.profile.divergence import find_parting

AT = 5


def train(directory: Path, name: str, change: str = "") -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    if change == "start":
        with torch.no_grad():
            model[2].weight[0, 0] += 1e-3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stethos.watch(dir=directory, name=name):
        for step in range(8):
            inputs, targets = torch.randn(16, 8), torch.randn(16, 2)
            if step == AT and change == "inputs":
                inputs[0, 0] += 1
            if step == AT and change == "targets":
                targets[0, 0] += 1
            if step == AT and change == "rate":
                optimizer.param_groups[0]["lr"] = 0.05
            if step == AT and change == "random":
                torch.rand(1)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("change", "what", "step", "layer"),
    [
        ("", "", None, ""),
        ("start", "weights", 0, "2.weight"),
        ("inputs", "inputs", AT, ""),
        ("targets", "targets", AT, ""),
        ("random", "random state", AT, ""),
        ("rate", "learning rate", AT, ""),
    ],
)
def test_what_parts_two_runs_is_named(tmp_path: Path, change: str, what: str, step: int | None, layer: str) -> None:
    train(tmp_path, "first")
    train(tmp_path, "second", change)
    with stethos.open_run(tmp_path / "first") as first, stethos.open_run(tmp_path / "second") as second:
        found = find_parting(first, second)
    assert (found.what, found.step, found.layer) == (what, step, layer), found
    assert found.compared_steps == 8 and found.equal_until == (step - 1 if step else None)


def test_the_command_says_it_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, "first")
    train(tmp_path, "second", "inputs")
    assert main(["diverge", "first", "second", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == (
        f"the runs part at step {AT}: the inputs differ; all was equal until step {AT - 1}"
    )
    assert main(["diverge", "first", "first", "--dir", str(tmp_path), "--json"]) == 0
    assert '"what": ""' in capsys.readouterr().out
