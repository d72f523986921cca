"""On a real GPU: histograms are those of the CPU, come without waiting, and change nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import stethos
from stethos.guard import Guard
from stethos.observe.cuda.fused import Kernels
from stethos.observe.histogram import Elements

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def tensors() -> Iterator[torch.Tensor]:
    torch.manual_seed(3)
    yield torch.randn(20, 40)
    yield torch.randn(3000, 700).t()
    yield torch.cat([torch.randn(50), torch.tensor([math.nan, math.inf, -math.inf])])
    yield torch.randn(6400, dtype=torch.bfloat16)
    yield torch.randn(8, 3, 5, 5).to(memory_format=torch.channels_last)
    yield torch.full((9,), math.nan)


def test_counts_are_those_of_the_cpu() -> None:
    given = list(tensors())
    ids = list(range(len(given)))
    here, there = Elements([*given, *given], ids), Elements([one.cuda() for one in [*given, *given]], ids)
    torch.cuda.synchronize()
    assert there.is_late and not here.is_late
    by_place = []
    for elements in (here, there):
        layers, is_weight = elements.named()
        order = np.lexsort((layers, is_weight))
        by_place.append((layers[order].tolist(), elements.counted()[:, order]))
    assert by_place[0][0] == by_place[1][0]
    np.testing.assert_allclose(by_place[0][1][:2], by_place[1][1][:2], rtol=1e-6)
    assert np.nan_to_num(np.abs(by_place[0][1][2:] - by_place[1][1][2:])).max() <= 1


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_device() -> None:
    given = [one.cuda() for one in tensors()]
    torch.cuda.set_sync_debug_mode("error")
    try:
        elements = Elements([*given, *given], list(range(len(given))))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert elements.counted().shape[1] == 2 * len(given)


def train() -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(400):
        optimizer.zero_grad()
        model(torch.randn(256, 64, device="cuda")).logsumexp(1).mean().backward()
        optimizer.step()
    return [*(param.detach().cpu() for param in model.parameters()), torch.rand(3, device="cuda").cpu()]


def test_a_run_has_rows_of_gradients_and_weights_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    Kernels(Guard(strict=True).run).compile(torch.float32)
    bare = train()
    with stethos.watch(name="spread", dir=tmp_path, overhead=1.0):
        observed = train()
    assert all(torch.equal(one, other) for one, other in zip(bare, observed, strict=True))
    with stethos.open_run(tmp_path / "spread") as run:
        found = run.rows(
            "SELECT h.step, h.layer, h.kind, h.low >= l.min - 1e-6 AND h.high <= l.max + 1e-6 FROM histograms h "
            "JOIN layers l ON h.step = l.step AND h.layer = l.layer AND h.kind = l.kind"
        ).values
        assert {row[2] for row in found} == {"gradient", "weight"}
        assert len({row[0] for row in found}) >= 2
        assert all(row[3] for row in found)
        assert run.rows("SELECT * FROM gaps WHERE what = 'layers'").values == []
