"""On a real GPU: nothing changes, every loss arrives without a synchronisation."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import stethos

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

STEPS = 40


def train(*, amp: bool) -> tuple[str, list[float]]:
    """A short training on the GPU: the digest of all it ends with, and its losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    losses = []
    for _ in range(STEPS):
        inputs, labels = torch.randn(32, 64, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=amp):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    parts = [parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters()]
    digest = hashlib.sha256(b"".join(parts) + torch.cuda.get_rng_state().numpy().tobytes()).hexdigest()
    return digest, [float(loss) for loss in losses]


@pytest.mark.parametrize("amp", [False, True])
def test_training_on_a_gpu_is_unchanged_and_every_loss_is_recorded(amp: bool, tmp_path: Path) -> None:
    bare, _ = train(amp=amp)
    with stethos.watch(dir=tmp_path, preset="deep", overhead=1.0) as watch:
        observed, losses = train(amp=amp)
    assert watch.path is not None
    rows = stethos.open_run(watch.path).sql("SELECT loss FROM steps ORDER BY step")["loss"].to_pylist()
    assert observed == bare
    assert len(rows) == STEPS
    assert all(math.isclose(row, loss, rel_tol=1e-6) for row, loss in zip(rows, losses, strict=True))
