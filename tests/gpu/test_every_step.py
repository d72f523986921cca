"""On a real GPU: all gradients of every step, by one launch over kept addresses, whatever the model does with them."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stethos
from stethos.guard import Guard
from stethos.observe.cuda.fused import Kernels

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

STEPS = 30


@pytest.fixture(scope="module", autouse=True)
def kernel() -> None:
    """Compiled before the first training: these are shorter than that takes."""
    for dtype in (torch.float32, torch.bfloat16):
        Kernels(Guard(strict=True).run).compile(dtype)


def rows(path: Path | None, query: str) -> list[tuple[Any, ...]]:
    assert path is not None
    return [tuple(row) for row in stethos.open_run(path).rows(query).values]


def trained(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, **more: Any) -> tuple[Any, list[Any]]:
    """Train with every step affordable; the recording, and the true norms of each step's gradients by name."""
    scaler, change = more.get("scaler"), more.get("change", lambda step: None)
    truth = []
    with stethos.watch(model, dir=path, overhead=1.0) as watch:
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=more.get("set_to_none", True))
            change(step)
            inputs = torch.randn(16, 64, device="cuda", dtype=next(model.parameters()).dtype)
            loss = model(inputs).float().square().mean()
            (loss if scaler is None else scaler.scale(loss)).backward()
            norms = {name: p.grad.float().norm() for name, p in model.named_parameters() if p.grad is not None}
            truth.append((norms, None if scaler is None else scaler.get_scale()))
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            time.sleep(0.02)
    return watch, [{name: float(norm) / (scale or 1.0) for name, norm in norms.items()} for norms, scale in truth]


def agrees(watch: Any, truth: list[dict[str, float]], *, least: int) -> None:
    found: dict[int, dict[str, float]] = {}
    for step, layer, norm in rows(
        watch.path, "SELECT step, layer, norm FROM layers WHERE kind = 'gradient' AND norm IS NOT NULL"
    ):
        found.setdefault(step, {})[layer] = norm
    assert len(found) >= least, sorted(found)
    for step, layers in found.items():
        assert layers.keys() == truth[step].keys()
        assert all(math.isclose(layers[name], truth[step][name], rel_tol=1e-3, abs_tol=1e-6) for name in layers), step
    assert rows(watch.path, "SELECT * FROM gaps") == []


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.LayerNorm(64), nn.Linear(64, 8)).cuda()


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of ours is a failure of the test."""
    monkeypatch.setenv("STETHOS_STRICT", "1")


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_of_nearly_every_step_are_read(tmp_path: Path, set_to_none: bool) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    agrees(*trained(tmp_path, model, optimizer, set_to_none=set_to_none), least=STEPS - 6)


def test_gradients_that_move_change_shape_or_vanish_are_read_where_they_are(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    keep = []

    def change(step: int) -> None:
        keep.append(torch.empty(64 * 128 * (step % 5), device="cuda"))  # the allocator hands out other addresses
        model[0].requires_grad_(step % 7 != 3)
        if step == 15:
            model[2].weight.data = model[2].weight.data.bfloat16().float()

    agrees(*trained(tmp_path, model, optimizer, change=change), least=STEPS - 6)


def test_types_are_mixed(tmp_path: Path) -> None:
    model = net().bfloat16()
    model[3].float()
    inner = model[3].forward
    model[3].forward = lambda x: inner(x.float()).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watch, truth = trained(tmp_path, model, optimizer)
    assert len(rows(watch.path, "SELECT DISTINCT step FROM layers WHERE kind = 'gradient'")) >= STEPS - 6
    agrees(watch, truth, least=STEPS - 6)


def test_a_fused_optimizer_leaves_the_scale_to_us_and_skipped_steps_accuse_nobody(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=1000)

    def change(step: int) -> None:
        if step == 12:
            model[0].weight.register_hook(lambda gradient: gradient * math.inf)
        if step == 13:
            model[0].weight._backward_hooks.clear()

    watch, _ = trained(tmp_path, model, optimizer, scaler=scaler, change=change)
    found = rows(watch.path, "SELECT step, sum(nan + inf) FROM layers WHERE kind = 'gradient' GROUP BY step")
    steps = {step for step, _ in found}
    assert len(steps) >= STEPS - 7 and 12 not in steps and not any(bad for _, bad in found)
    norms = dict(rows(watch.path, "SELECT step, max(norm) FROM layers WHERE kind = 'gradient' GROUP BY step"))
    assert max(norms.values()) < 100 * min(norms.values())  # unscaled, at every scale


def test_another_stream_is_followed(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with torch.cuda.stream(torch.cuda.Stream()):
        agrees(*trained(tmp_path, model, optimizer), least=STEPS - 6)


def test_a_nan_in_one_gradient_is_found_with_its_layer_and_step(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())

    def change(step: int) -> None:
        if step == 20:
            model[2].weight.register_hook(lambda g: g.index_fill(0, torch.tensor([3], device="cuda"), math.nan))

    watch, _ = trained(tmp_path, model, optimizer, change=change)
    (first,) = [one for one in stethos.diagnose(watch.path).findings if one.name.startswith("non-finite")]
    assert first.name == "non-finite-gradients" and first.subject.layers[0] == "2.weight"
    assert first.detail["step"] == 20
