"""On a real GPU: nothing changes, nothing waits, and rows hold what the device did."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stethos
from stethos.guard import Guard
from stethos.observe.cuda.fused import Kernels

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

STEPS = 40


def train(*, amp: bool = False, accumulate: int = 1, width: int = 256) -> tuple[str, list[float], list[float]]:
    """A short training on the GPU: the digest of all it ends with, its losses and the norms of its gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(width, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(accumulate):
            inputs, labels = torch.randn(32, 64, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
            with torch.autocast("cuda", torch.float16, enabled=amp):
                loss = nn.functional.cross_entropy(model(inputs), labels) / accumulate
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm())
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    parts = [parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters()]
    digest = hashlib.sha256(b"".join(parts) + torch.cuda.get_rng_state().numpy().tobytes()).hexdigest()
    return digest, [float(loss) for loss in losses], [float(norm) for norm in norms]


def rows(path: Path | None, query: str) -> list[tuple[Any, ...]]:
    assert path is not None
    return [tuple(row) for row in stethos.open_run(path).rows(query).values]


@pytest.fixture(scope="module", autouse=True)
def kernel() -> None:
    """Compiled before the first training: these are shorter than that takes."""
    Kernels(Guard(strict=True).run).compile(torch.float32)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A failure of ours is a failure of the test."""
    monkeypatch.setenv("STETHOS_STRICT", "1")
    return


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("preset", ["standard", "deep"])
@pytest.mark.parametrize("amp", [False, True])
def test_training_on_a_gpu_is_unchanged_and_every_loss_is_recorded(amp: bool, preset: Any, tmp_path: Path) -> None:
    bare, _, _ = train(amp=amp)
    with stethos.watch(dir=tmp_path, preset=preset, overhead=1.0) as watch:
        observed, losses, norms = train(amp=amp)
    found = rows(watch.path, "SELECT loss, grad_norm FROM steps ORDER BY step")
    assert observed == bare
    assert len(found) == STEPS
    assert all(math.isclose(row[0], loss, rel_tol=1e-6) for row, loss in zip(found, losses, strict=True))
    known = [(row[1], norm) for row, norm in zip(found, norms, strict=True) if row[1] is not None]
    assert len(known) > 2 and all(math.isclose(mine, norm, rel_tol=1e-5) for mine, norm in known)
    layers = rows(watch.path, "SELECT kind, count(*), count(norm), sum(nan) FROM layers GROUP BY kind")
    assert {kind for kind, *_ in layers} >= {"gradient", "weight"} | ({"activation"} if preset == "deep" else set())
    assert all(total == known and not nan for _, total, known, nan in layers)
    assert rows(watch.path, "SELECT * FROM gaps") == []


@pytest.mark.usefixtures("strict")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_observing_never_waits_for_the_device(tmp_path: Path) -> None:
    """torch raises where anything waits; every kind of sample is taken."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(32, 64, device="cuda")
    with stethos.watch(model, dir=tmp_path, preset="deep", overhead=1.0) as watch:
        for step in range(60):
            if step == 20:
                torch.cuda.set_sync_debug_mode("error")
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        torch.cuda.set_sync_debug_mode("default")
    assert rows(watch.path, "SELECT * FROM gaps") == []
    ((layers, modules, memory),) = rows(
        watch.path,
        "SELECT (SELECT count(DISTINCT step) FROM layers WHERE step >= 20), (SELECT count(*) FROM modules), "
        "(SELECT count(*) FROM memory)",
    )
    assert layers and modules and memory


def test_times_are_the_devices_not_the_time_to_launch(tmp_path: Path) -> None:
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            torch.cuda._sleep(20_000_000)  # about 10 ms
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            torch.cuda._sleep(60_000_000)
            return gradient

    model = nn.Linear(8, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with stethos.watch(dir=tmp_path, preset="light") as watch:
        for _ in range(10):
            optimizer.zero_grad()
            for _ in range(2):
                Slow.apply(model(torch.ones(4, 8, device="cuda"))).sum().backward()
            optimizer.step()
        torch.cuda.synchronize()
    found = rows(watch.path, "SELECT forward_ms, backward_ms, optimizer_ms FROM steps WHERE step BETWEEN 2 AND 8")
    for forward_ms, backward_ms, optimizer_ms in found:
        assert 2.5 < backward_ms / forward_ms < 3.5 and optimizer_ms < forward_ms


def test_the_gpu_and_its_memory_are_sampled(tmp_path: Path) -> None:
    keep = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    with stethos.watch(dir=tmp_path, overhead=0.5) as watch:
        began = time.monotonic()
        while time.monotonic() - began < 3.5:  # the drainer looks once a second
            train(width=1024)
    ((count, used, total, power),) = rows(
        watch.path, "SELECT count(*), max(used_bytes), max(total_bytes), max(power_w) FROM gpu"
    )
    assert count >= 2 and keep.numel() < used < total and power > 10
    classes = dict(rows(watch.path, "SELECT class, max(bytes) FROM memory WHERE class IS NOT NULL GROUP BY class"))
    assert classes["other"] >= keep.numel()  # alive before, and nobody's
    weights = 4 * (64 * 1024 + 1024 + 1024 * 10 + 10)
    assert classes["model"] == weights and classes["optimizer"] >= 2 * weights and "cached" in classes
    ((peak, allocated),) = rows(watch.path, "SELECT max(peak_bytes), max(allocated_bytes) FROM steps")
    assert peak >= allocated > keep.numel()


@pytest.mark.parametrize("explains", [False, True])
def test_weights_broken_by_a_gradient_are_named_with_the_step(
    explains: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device keeps up with the host here, so the loss is known before the next step spreads the NaN."""
    monkeypatch.setenv("STETHOS_EXPLAIN_NAN", str(int(explains)))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with stethos.watch(dir=tmp_path, name="broken") as watch:
        for step in range(24):
            optimizer.zero_grad()
            model(torch.randn(16, 64, device="cuda")).pow(2).mean().backward()
            torch.cuda.synchronize()
            if step == 19:
                model[2].weight.grad.view(-1)[3] = math.nan
            optimizer.step()
            torch.cuda.synchronize()
    assert watch.path is not None
    first = next(one for one in stethos.diagnose(watch.path).findings if one.name.startswith("non-finite"))
    assert (first.name, first.detail["step"], first.subject.layers[0]) == ("non-finite-gradients", 19, "2.weight")


def corrupted(at: int) -> tuple[str, nn.Module]:
    """A training in which the output of a layer has one wrong bit at a step, once; 0: never."""
    torch.manual_seed(0)
    state = {"step": 0, "left": 1}

    class Faulty(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            if at and state["step"] == at and state["left"]:
                state["left"] = 0
                wrong = y.detach().clone()
                wrong.view(torch.int32)[3, 3] ^= 1 << 20
                y = y + (wrong - y).detach()
            return y

    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.2), Faulty(64, 64), nn.LayerNorm(64), nn.Linear(64, 4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        state["step"] = step
        inputs = torch.randn(32, 64, device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=step % 2 == 0):
            loss = model(inputs).float().pow(2).mean()
        loss.backward()
        optimizer.step()
    parts = [parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters()]
    return hashlib.sha256(b"".join(parts) + torch.cuda.get_rng_state().numpy().tobytes()).hexdigest(), model


def test_repeating_steps_changes_nothing_and_finds_a_wrong_bit(tmp_path: Path) -> None:
    bare = corrupted(0)[0]
    with stethos.watch(dir=tmp_path, name="healthy", sdc=0.5) as watch:
        assert corrupted(0)[0] == bare
    outcomes = rows(
        watch.path, "SELECT detail->>'outcome', count(*) FROM inspections WHERE phase = 'repeated' GROUP BY 1"
    )
    assert outcomes == [("equal", STEPS // 2 - 1)] and rows(watch.path, "SELECT * FROM gaps WHERE what = 'sdc'") == []
    with stethos.watch(dir=tmp_path, name="wrong", sdc=0.5) as watch:
        corrupted(21 - 21 % 2)
    assert watch.path is not None
    (found,) = [one for one in stethos.diagnose(watch.path).findings if one.name == "silent-corruption"]
    assert (found.kind, found.subject.layers, found.subject.first) == ("activation", ("2",), 20)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_kernels_are_put_into_classes_and_idle_time_is_found(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    from stethos.cli.task.saved_trace import read_trace
    from stethos.live.device_time import device_times
    from stethos.live.profiler_trace import saved_trace, tables_of

    corrupted(0)  # warm
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as profiler:
        corrupted(0)
        time.sleep(0.2)  # the GPU waits for the program
        torch.cuda.synchronize()
    tables = tables_of(profiler)
    assert tables["is_gpu"] and {"matmul", "optimizer", "normalisation", "elementwise"} <= set(tables["class_ms"])
    saved_trace(profiler, tmp_path / "t.json.gz", 1 << 28)
    (found,) = device_times(read_trace(tmp_path / "t.json.gz")["traceEvents"])
    assert {"matmul", "optimizer", "normalisation"} <= set(found.class_ms)
    assert sum(found.class_ms.values()) + sum(found.idle_ms.values()) == pytest.approx(found.whole_ms, rel=0.02)
    assert found.idle_ms["host"] > 100
