"""Passes over a training data loader are spans named `epoch`; passes to evaluate are not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from recording import Recording
from torch.utils.data import DataLoader, TensorDataset


def test_a_pass_with_steps_is_an_epoch_and_one_without_is_none(record: Callable[..., Recording]) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=5)
    recording = record()
    for _ in range(3):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        with torch.no_grad():
            for (x,) in loader:
                model(x)
        for (x,) in loader:  # forward and backward alone are no training either
            model(x).sum().backward()
    for (x,) in loader:  # left before its end
        model(x).sum().backward()
        optimizer.step()
        break
    run = recording.close()
    rows = run.rows("SELECT duration_ms, fields FROM spans WHERE name = 'epoch' ORDER BY t_ns").values
    assert [fields for _, fields in rows] == ['{"steps": 4}'] * 3 and all(duration > 0 for duration, _ in rows)
