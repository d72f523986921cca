"""What is noted of graphs that are kept, of evaluations and of optimizers, and that the training does not notice."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from recording import Recording
from torch import nn
from torch.nn import functional

Record = Callable[..., Recording]


def train(model: nn.Module, *, steps: int = 10, keep: list[Any] | None = None, evaluate: bool = False) -> None:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.5)
    for _ in range(steps):
        inputs, targets = torch.randn(16, 6), torch.randn(16, 1)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if keep is not None:
            keep.append(loss)
        if evaluate:
            model.eval()
            with torch.no_grad():
                functional.mse_loss(model(inputs), targets)
            model.train()


def details(recording: Recording, phase: str = "training") -> list[dict[str, Any]]:
    recording.close()
    rows = recording.rows(f"SELECT detail FROM inspections WHERE phase = '{phase}' ORDER BY step")
    return [json.loads(row[0]) for row in rows]


def test_graphs_that_the_program_keeps_are_counted(record: Record) -> None:
    recording, kept = record(), []
    train(nn.Linear(6, 1), keep=kept)
    assert [row["kept"] for row in details(recording)][:8] == list(range(8))


def test_of_graphs_that_are_let_go_one_is_left_at_most(record: Record) -> None:
    recording = record()
    train(nn.Linear(6, 1))
    assert max(row["kept"] for row in details(recording)) <= 1


def test_the_decay_of_a_step_is_its_rate_times_the_decay(record: Record) -> None:
    recording = record()
    train(nn.Linear(6, 1))
    last = details(recording)[-1]
    assert (last["weight_decay"], last["decay_per_step"], last["frozen"]) == (0.5, 0.05, 0.0)


def test_the_loss_of_an_evaluation_is_recorded_without_being_logged(record: Record) -> None:
    recording = record()
    train(nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 1)), evaluate=True)
    recording.close()
    names = recording.rows("SELECT DISTINCT name FROM metrics")
    assert names == [("eval_loss (seen)",)]
    modes = "SELECT count(*), max(stateful_training) FROM inspections WHERE phase = 'evaluation'"
    assert recording.rows(modes) == [(10, 0)]


def test_loss_functions_are_torchs_own_outside_of_evaluations(record: Record) -> None:
    before = functional.mse_loss, functional.dropout, torch.no_grad.__enter__
    recording = record()
    train(nn.Linear(6, 1), evaluate=True)
    assert (functional.mse_loss, functional.dropout) == before[:2]
    recording.close()
    assert torch.no_grad.__enter__ is before[2]


def test_weights_and_random_numbers_are_the_same_with_evaluations(record: Record) -> None:
    def outcome() -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        train(model, evaluate=True)
        return [parameter.detach().clone() for parameter in model.parameters()], torch.get_rng_state()

    bare = outcome()
    recording = record()
    observed = outcome()
    recording.close()
    assert all(map(torch.equal, bare[0], observed[0])) and torch.equal(bare[1], observed[1])


def test_an_update_by_hand_is_soon_left_alone(record: Record) -> None:
    """Its `no_grad` block holds no forward pass: nothing is wrapped for it after a few times."""
    recording = record()
    model = nn.Linear(6, 1)
    train(model, steps=1)
    wrapped = []
    own = functional.mse_loss
    for _ in range(8):
        with torch.no_grad():
            wrapped.append(functional.mse_loss is not own)
    recording.close()
    assert wrapped == [True] * 4 + [False] * 4
