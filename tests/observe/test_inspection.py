"""Rows of `inspections`: what is seen of a training, and that it does not notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from recording import Recording
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

Record = Callable[..., Recording]


def train(passes: int = 3, *, evaluate_in_training_mode: bool = False) -> nn.Module:
    torch.manual_seed(0)
    inputs, labels = torch.randn(64, 6), torch.randint(0, 3, (64,))
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(passes):
        model.train()
        for batch, answer in DataLoader(TensorDataset(inputs, labels), 16, shuffle=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), answer).backward()
            optimizer.step()
        model.train(evaluate_in_training_mode)
        with torch.no_grad():
            for batch, _ in DataLoader(TensorDataset(inputs, labels), 32):
                model(batch)
    return model


def test_the_first_backwards_are_inspected(record: Record) -> None:
    recording = record()
    train()
    recording.close()
    rows = recording.rows(
        "SELECT step, function, leaves, classes, outputs, batch, unoptimized, remark FROM inspections "
        "WHERE phase = 'training' ORDER BY step LIMIT 8"
    )
    assert [row[0] for row in rows] == list(range(8))
    assert all(row[1:6] == ("NllLoss", 4, 3, 3, 16) and row[7] is None for row in rows)
    assert [row[6] for row in rows] == [None] + [0] * 7  # before its first step no optimizer is known


def test_each_pass_and_each_evaluation_is_noted(record: Record) -> None:
    recording = record()
    train(passes=4)
    recording.close()
    assert recording.rows("SELECT count(*) FROM inspections WHERE epoch_start = 1") == [(4,)]
    modes = "SELECT DISTINCT stateful, stateful_training, root_training FROM inspections WHERE phase = "
    assert recording.rows(f"{modes}'evaluation'") == [(1, 0, 0)]
    assert recording.rows(f"{modes}'training' AND stateful IS NOT NULL") == [(1, 1, 1)]


def test_an_evaluation_in_training_mode_is_seen(record: Record) -> None:
    recording = record()
    train(evaluate_in_training_mode=True)
    recording.close()
    assert recording.rows("SELECT DISTINCT stateful_training FROM inspections WHERE phase = 'evaluation'") == [(1,)]


@pytest.mark.parametrize(("is_evaluation", "seen"), [(True, [(22, 0.0)]), (False, [])])
def test_the_first_backward_after_an_evaluation_is_inspected(
    record: Record, is_evaluation: bool, seen: list[tuple[int, float]]
) -> None:
    """Without a loader nothing else tells where a pass begins, in which the model may still be in evaluation mode."""
    recording = record()
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
    for step in range(24):
        if step == 22:  # 20, 21, 24 and 25 are looked at anyway
            model.train(not is_evaluation)
            with torch.no_grad():
                model(x)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    recording.close()
    rows = "SELECT step, root_training FROM inspections WHERE phase = 'training' AND step = 22"
    assert recording.rows(rows) == seen


def test_an_average_of_the_weights_is_evaluated_without_the_model(record: Record) -> None:
    recording = record()
    model = train(passes=1)
    average, data = AveragedModel(model.train()), DataLoader(TensorDataset(torch.randn(64, 6)), 16)
    update_bn(data, average)
    average.eval()
    with torch.no_grad():
        for (batch,) in data:
            average(batch)
    recording.close()
    assert recording.rows("SELECT stateful_training FROM inspections WHERE phase = 'evaluation'") == [(0,)]


def test_a_part_of_the_model_that_runs_is_an_evaluation(record: Record) -> None:
    recording = record()
    model = nn.ModuleList([nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 1)])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[2](model[1](model[0](torch.randn(4, 6)))).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model[2](model[1](torch.randn(4, 8)))
    recording.close()
    assert recording.rows("SELECT stateful_training FROM inspections WHERE phase = 'evaluation'") == [(1,)]


def test_the_training_does_not_notice(record: Record) -> None:
    expected = [parameter.clone() for parameter in train().parameters()]
    state = torch.get_rng_state()
    recording = record()
    observed = list(train().parameters())
    assert all(map(torch.equal, expected, observed)) and torch.equal(state, torch.get_rng_state())
    recording.close()


def test_torch_has_its_own_backward_again(record: Record) -> None:
    before = torch.autograd.backward
    recording = record()
    train()
    recording.close()
    assert torch.autograd.backward is before


def test_gradients_that_were_left_are_seen(record: Record) -> None:
    recording = record()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    recording.close()
    rows = recording.rows("SELECT leftover_norm FROM inspections ORDER BY step")
    assert rows[0] == (None,) and all(row[0] > 0 for row in rows[1:])


def test_gradients_that_no_optimizer_clears_are_not_left_over(record: Record) -> None:
    recording = record()
    model, other = nn.Linear(3, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        other(model(torch.ones(4, 3))).sum().backward()
        optimizer.step()
    recording.close()
    assert other.weight.grad is not None
    assert recording.rows("SELECT DISTINCT leftover_norm FROM inspections WHERE step > 0") == [(0.0,)]


def test_a_parameter_in_a_plain_list_is_seen(record: Record) -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [nn.Linear(6, 6)]
            self.head = nn.Linear(6, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.hidden[0](inputs))  # type: ignore[no-any-return]

    recording = record()
    model = Listed()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,))).backward()
        optimizer.step()
    recording.close()
    rows = recording.rows("SELECT unoptimized, detail FROM inspections WHERE step = 3")
    assert rows[0][0] == 2 and '"unowned": 2' in rows[0][1]


def test_a_warning_becomes_a_row(record: Record) -> None:
    import warnings

    recording = record()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("a word of warning", UserWarning, stacklevel=1)
    recording.close()
    rows = recording.rows("SELECT level, message FROM logs WHERE logger = 'py.warnings'")
    assert rows == [("WARNING", "UserWarning: a word of warning")]


def test_gradients_are_read_at_the_step_of_an_inspected_backward(record: Record) -> None:
    """So that gradients that are gone when the optimizer steps are noticed in short trainings, too."""
    recording = record()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(6):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().mean().backward()
        if step >= 3:
            optimizer.zero_grad()
        optimizer.step()
    recording.close()
    norms = recording.column("SELECT grad_norm FROM steps ORDER BY step")
    before, after = ([norm for norm in part if norm is not None] for part in (norms[:3], norms[3:]))
    assert before and after and min(before) > 0 and max(after) == 0  # a busy machine may leave looks out


def test_labels_of_one_step_may_be_the_inputs_of_the_next(record: Record) -> None:
    """A recurrent model whose loss adds up several steps is not said to predict what it is given."""
    recording = record()
    words = torch.randint(0, 12, (8, 40))
    embedding, cell, head = nn.Embedding(12, 6), nn.GRUCell(6, 8), nn.Linear(8, 12)
    model = nn.ModuleList([embedding, cell, head])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    state = torch.zeros(8, 8)
    for place in range(0, 20, 2):
        optimizer.zero_grad()
        losses = []
        for at in (place, place + 1):
            state = cell(embedding(words[:, at]), state)
            losses.append(functional.cross_entropy(head(state), words[:, at + 1]))
        torch.stack(losses).mean().backward()
        optimizer.step()
        state = state.detach()
    recording.close()
    assert not any("is_copy" in (detail or "") for detail in recording.column("SELECT detail FROM inspections"))


def test_only_the_first_batch_of_a_pass_is_its_start(record: Record) -> None:
    """A pass whose first batch was not inspected does not give its start to a later one."""
    recording = record()
    inspector = recording.steps.inspector
    train()
    inspector._spent_ns, inspector._left = 1 << 62, 0  # nothing can be afforded any more
    inspector.pass_began(None)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        if step == 2:
            inspector._arm(2)
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    recording.close()
    assert recording.column(
        "SELECT epoch_start FROM inspections WHERE phase = 'training' ORDER BY step DESC LIMIT 2"
    ) == [0, 0]
