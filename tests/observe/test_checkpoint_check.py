"""Trainings that go on from a checkpoint, with and without the state of their optimizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recording import Recording
from torch import nn
from torch.nn import functional

from stethos.diagnose.api import diagnose
from stethos.diagnose.finding import Severity

Record = Callable[..., Recording]
pytestmark = pytest.mark.usefixtures("unhurried")


def train(path: Path, *, is_resumed: bool, rate: float = 0.05) -> None:
    """Twelve steps from a checkpoint if there is one, and another checkpoint."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        if is_resumed:
            optimizer.load_state_dict(saved["optimizer"])
    for _ in range(12):
        optimizer.zero_grad()
        functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()
        schedule.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


@pytest.mark.parametrize(
    ("is_resumed", "rate", "found"), [(False, 0.05, {"not-resumed"}), (True, 0.05, set()), (False, 0.005, set())]
)
def test_an_optimizer_that_begins_anew_beside_its_saved_state(
    record: Record, tmp_path: Path, is_resumed: bool, rate: float, found: set[str]
) -> None:
    """With another rate a checkpoint is tuned on purpose."""
    train(tmp_path / "last.pt", is_resumed=False)
    recording = record()
    train(tmp_path / "last.pt", is_resumed=is_resumed, rate=rate)
    recording.close()
    said = diagnose(recording.path).findings
    assert {one.kind for one in said if one.severity > Severity.INFO and one.name == "wrong-call"} == found
