"""On a real GPU: a federation whose models live there has the fingerprints of its twin on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stethos

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

CLIENTS = 5


def federate(directory: Path, device: str) -> list[tuple[Any, ...]]:
    """Three rounds with made-up updates, the same numbers on either device; their fingerprints."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 4))
    steps = [
        {
            name: 0.01 * torch.randn(value.shape)
            for name, value in model.state_dict().items()
            if value.is_floating_point()
        }
        for _ in range(3 * CLIENTS)
    ]
    model.to(device)
    with stethos.federation("twins", model=model, dir=directory, run=device) as fed:
        for number, rnd in enumerate(fed.rounds(3)):
            states = []
            for client in range(CLIENTS):
                with rnd.client(f"c{client}") as site:
                    step = steps[number * CLIENTS + client]
                    scale = -3.0 if client == 2 else 1.0
                    state = {
                        name: value + scale * step[name].to(device) if name in step else value.clone()
                        for name, value in model.state_dict().items()
                    }
                    site.update(state, samples=10, loss=1.0)
                    states.append(state)
            with rnd.phase("aggregate"):
                mean = {name: sum(state[name] for state in states) / CLIENTS for name in states[0]}
                model.load_state_dict({name: value.to(model.state_dict()[name].dtype) for name, value in mean.items()})
            rnd.evaluate(loss=1.0 / (number + 1), accuracy=0.5)
        path = fed.path
    assert path is not None
    with stethos.open_run(path) as run:
        assert run.rows("SELECT what, reason FROM gaps").values == []
        return [tuple(row) for row in run.rows(
            "SELECT round, client, layer, norm, base_norm, norm_ratio, cos_centre, sign_agreement, cos_last, cos_self, "
            "nan, inf, zero_share, size FROM updates ORDER BY round, client, layer"
        ).values]  # fmt: skip


def test_fingerprints_on_a_gpu_are_those_on_the_cpu(tmp_path: Path) -> None:
    here, there = federate(tmp_path, "cpu"), federate(tmp_path, "cuda")
    assert len(here) == len(there) > 3 * CLIENTS
    for mine, other in zip(there, here, strict=True):
        assert mine[:3] == other[:3]
        for one, twin in zip(mine[3:], other[3:], strict=True):
            assert (one is None) == (twin is None), mine[:3]
            assert one is None or one == pytest.approx(twin, rel=1e-4, abs=1e-5), (mine, other)
