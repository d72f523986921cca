"""Faults of training that evidence from inside shows, and that what all clients do is no fault of one of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from loop import make_clients, make_model
from torch import Tensor, nn

import stethos

FAULTS = ("turned", "decayed", "softmax twice", "dropout left", "stopped early")
ONLY_UNLIKE = ("stopped early",)  # honest clients of some algorithms do so, too: a remark, not an accusation


def loss_of(model: nn.Module, x: Tensor, y: Tensor, fault: str | None) -> Tensor:
    answers = model(x)
    if fault == "softmax twice":
        answers = torch.softmax(answers, 1)
    if fault == "dropout left":
        answers = nn.functional.dropout(answers, 0.9)
    return nn.functional.cross_entropy(answers, y)


def train(model: nn.Module, x: Tensor, y: Tensor, fault: str | None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in torch.randperm(len(x)).split(8):
        optimizer.zero_grad()
        loss_of(model, x[batch], y[batch], fault).backward()
        if fault == "turned":
            gradient = max(model.parameters(), key=torch.numel).grad
            assert gradient is not None
            gradient.neg_()
        optimizer.step()
        if fault == "decayed":
            with torch.no_grad():
                for one in model.parameters():
                    one.mul_(0.95)
        if fault == "stopped early":
            break


def accused_in(
    directory: Path,
    fault_of: Callable[[str], str | None],
    *,
    has_windows: bool = False,
    detector: str = "faulty-client",
) -> dict[str, str]:
    """`has_windows`: samples are cut anew from longer records in each round, and c3 has ten times as many."""
    torch.manual_seed(1)
    model = make_model()
    with stethos.federation("training", model=model, dir=directory, run="r", progress=False) as fed:
        for rnd in fed.rounds(4):
            states = []
            for client in make_clients(8):
                with rnd.client(client.name) as site:
                    local = copy.deepcopy(model)
                    x, y = client.x, client.y
                    if has_windows:
                        times = 10 if client.name == "c3" else 1
                        x, y = x.repeat(times, 1), y.repeat(times)
                        x = x + 0.3 * torch.randn_like(x)
                    train(local, x, y, fault_of(client.name))
                    site.update(local.state_dict(), samples=len(x))
                    states.append(local.state_dict())
            model.load_state_dict({key: sum(one[key] for one in states) / len(states) for key in states[0]})
    findings = [one for one in stethos.diagnose(fed.run()).findings if one.name == detector]
    return {one.subject.clients[0]: one.kind for one in findings}


@pytest.mark.parametrize("fault", FAULTS)
def test_who_trains_otherwise_than_the_others_is_named(tmp_path: Path, fault: str) -> None:
    detector = "unlike-client" if fault in ONLY_UNLIKE else "faulty-client"
    named = accused_in(tmp_path, lambda name: fault if name == "c3" else None, detector=detector)
    assert named == {"c3": "unknown"}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_all_clients_do_is_no_fault(tmp_path: Path, fault: str) -> None:
    assert accused_in(tmp_path, lambda _: fault) == {}


def test_a_client_with_ten_times_the_data_makes_ten_times_the_steps(tmp_path: Path) -> None:
    assert accused_in(tmp_path, lambda _: None, has_windows=True) == {}
