"""Trainings nobody thought of: nothing raises, and the rows say what is known."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recording import Recording
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode

Record = Callable[..., Recording]
PRESETS = ("light", "standard", "deep")
pytestmark = pytest.mark.usefixtures("every_step")


def train(loss_of: Callable[[], torch.Tensor], *optimizers: torch.optim.Optimizer, steps: int = 12) -> None:
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of().backward()
        for optimizer in optimizers:
            optimizer.step()


# Nothing to see --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_a_recording_without_rows_can_be_read(record: Record, preset: str) -> None:
    recording = record(preset=preset)
    for table in ("steps", "layers", "modules", "logs", "spans", "metrics", "gaps", "python.torch_trace"):
        assert recording.rows(f"SELECT * FROM {table}") == []
    summary = recording.close().summary()
    assert summary["steps"] == 0 and summary["last_loss"] is None and summary["state"] == "ended"


def test_steps_made_by_hand_are_counted(record: Record) -> None:
    recording = record(preset="deep", overhead=1.0)
    model = nn.Linear(3, 1)
    for _ in range(5):
        model(torch.randn(4, 3)).sum().backward()
        with torch.no_grad():
            for param in model.parameters():
                param -= 0.1 * param.grad
                param.grad = None
    recording.close()
    losses = [row[0] for row in recording.rows("SELECT loss FROM steps ORDER BY step")]
    assert len(losses) == 5 and all(map(math.isfinite, losses))


def test_the_steps_of_something_that_only_looks_like_an_optimizer_count(record: Record) -> None:
    class Duck:
        def __init__(self, params: Any) -> None:
            self.param_groups = [{"params": list(params), "lr": 0.1}]

        def step(self) -> None:
            for param in self.param_groups[0]["params"]:
                param.data.sub_(param.grad)

    recording = record()
    model = nn.Linear(3, 1)
    duck = Duck(model.parameters())
    for _ in range(5):
        model(torch.randn(4, 3)).sum().backward()
        duck.step()
    assert recording.rows("SELECT count(*), count(loss) FROM steps") == [(5, 5)]


def test_a_model_without_parameters_may_be_watched(record: Record) -> None:
    recording = record(nn.ReLU(), preset="deep", overhead=1.0)
    weight = torch.ones(3, requires_grad=True)
    train(lambda: nn.functional.relu(weight).sum(), torch.optim.SGD([weight], lr=0.1))
    assert recording.column("SELECT DISTINCT layer FROM layers WHERE kind = 'weight'") == ["param_0"]


def test_a_budget_of_zero_still_has_every_step(record: Record) -> None:
    recording = record(overhead=0.0)
    model = nn.Linear(3, 1)
    train(lambda: model(torch.ones(2, 3)).sum(), torch.optim.SGD(model.parameters(), lr=0.1), steps=50)
    assert recording.rows("SELECT count(*) FROM steps") == [(50,)]
    assert recording.column("SELECT DISTINCT step FROM layers") == [0]


# Odd parameters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_nan_everywhere(record: Record, preset: str) -> None:
    recording = record(preset=preset, overhead=1.0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    with torch.no_grad():
        for param in model.parameters():
            param.fill_(math.nan)
    train(lambda: model(torch.randn(2, 3)).sum(), torch.optim.Adam(model.parameters()))
    assert recording.rows("SELECT count(*), count(*) FILTER (isnan(loss)) FROM steps") == [(12, 12)]
    assert recording.rows("SELECT count(*) FROM steps WHERE grad_norm IS NOT NULL AND NOT isnan(grad_norm)") == [(0,)]
    rows = recording.rows("SELECT DISTINCT norm, mean, std, min, max FROM layers WHERE nan = size")
    assert rows in ([], [(None,) * 5])
    if preset != "light":
        assert recording.rows("SELECT count(*) > 0 FROM layers WHERE kind = 'weight' AND nan = size") == [(True,)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64], ids=str)
def test_parameters_of_any_dtype(record: Record, dtype: torch.dtype) -> None:
    recording = record(preset="deep", overhead=1.0)
    model = nn.Linear(3, 1, dtype=dtype)
    train(lambda: model(torch.ones(2, 3, dtype=dtype)).abs().sum(), torch.optim.SGD(model.parameters(), lr=0.01))
    assert recording.rows("SELECT count(*), count(loss), count(grad_norm) > 2 FROM steps") == [(12, 12, True)]
    assert recording.rows("SELECT count(*) FROM layers WHERE norm IS NULL OR NOT norm > 0") == [(0,)]


def test_sparse_gradients(record: Record) -> None:
    recording = record(preset="deep", overhead=1.0)
    table = nn.Embedding(100, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    train(lambda: table(torch.tensor([1, 2, 2])).square().sum(), optimizer)
    assert recording.rows("SELECT count(*), count(allocated_bytes) FROM steps") == [(12, 12)]
    assert (
        recording.rows("SELECT count(*) FROM layers WHERE kind = 'gradient' AND norm > 0 AND zero_share = 0")[0][0] > 0
    )


def test_meta_parameters_have_rows_without_numbers(record: Record) -> None:
    recording = record(preset="deep", overhead=1.0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).to("meta")
    train(lambda: model(torch.randn(2, 3, device="meta")).sum(), torch.optim.Adam(model.parameters()))
    assert recording.rows("SELECT DISTINCT loss, grad_norm, backwards FROM steps") == [(None, None, 1)]
    assert recording.rows("SELECT count(norm), count(*) > 0, min(size) FROM layers") == [(0, True, 1)]


def test_frozen_unused_and_empty_parameters(record: Record) -> None:
    recording = record(overhead=1.0)
    model = nn.Module()
    model.used = nn.Parameter(torch.ones(3))
    model.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    model.unused = nn.Parameter(torch.ones(3))
    model.empty = nn.Parameter(torch.ones(0, 3))
    model.scalar = nn.Parameter(torch.tensor(2.0))
    train(lambda: model.used.sum() * model.scalar + model.empty.sum(), torch.optim.SGD(model.parameters(), lr=0.1))
    known = recording.rows("SELECT DISTINCT layer, kind FROM layers WHERE norm IS NOT NULL ORDER BY layer, kind")
    assert known == [
        ("frozen", "weight"), ("scalar", "gradient"), ("scalar", "weight"), ("unused", "weight"),
        ("used", "gradient"), ("used", "weight"),
    ]  # fmt: skip
    assert recording.rows("SELECT count(grad_norm) > 2 FROM steps") == [(True,)]


def test_no_gradient_at_all_has_a_norm_of_zero_where_it_is_read(record: Record) -> None:
    recording = record(overhead=1.0)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    for _ in range(6):
        optimizer.step()
    rows = recording.rows("SELECT DISTINCT grad_norm, loss FROM steps")
    assert set(rows) <= {(0.0, None), (None, None)} and (0.0, None) in rows


def test_views_and_transposed_parameters(record: Record) -> None:
    recording = record(overhead=1.0)
    base = torch.arange(12.0).reshape(3, 4)
    params = [nn.Parameter(base.t()), nn.Parameter(base[:, 1:2])]
    optimizer = torch.optim.SGD(params, lr=0.0)
    train(lambda: sum(param.square().sum() for param in params), optimizer)  # type: ignore[arg-type,return-value]
    rows = recording.rows("SELECT DISTINCT layer, mean, size FROM layers WHERE kind = 'weight' ORDER BY layer")
    assert rows == [("param_0", 5.5, 12), ("param_1", 5.0, 3)]


def test_lazy_modules(record: Record) -> None:
    recording = record(preset="deep", overhead=1.0)
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1))
    other = nn.LazyLinear(2)  # never called: its parameters stay uninitialized
    model(torch.randn(1, 3))
    train(lambda: model(torch.randn(2, 3)).sum(), torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1))
    assert recording.rows("SELECT count(*) FROM steps") == [(12,)]
    assert recording.rows("SELECT count(*) > 0 FROM layers WHERE norm IS NOT NULL") == [(True,)]


def test_tensors_made_of_other_tensors_have_rows_without_numbers(record: Record) -> None:
    """What stands in their own memory is not what they hold."""
    recording = record(preset="deep", overhead=1.0)
    weight = nn.Parameter(TwoTensor(torch.ones(3), torch.ones(3)))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    train(lambda: weight.sum(), optimizer)
    assert recording.rows("SELECT count(*), count(loss), count(grad_norm) FROM steps") == [(12, 0, 0)]
    assert recording.rows("SELECT count(norm), count(*) > 0 FROM layers") == [(0, True)]


def test_a_training_on_fake_tensors(record: Record) -> None:
    recording = record(preset="deep", overhead=1.0)
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
        train(lambda: model(torch.randn(2, 3)).sum(), torch.optim.Adam(model.parameters()))
    assert recording.rows("SELECT count(*), count(loss) FROM steps") == [(12, 0)]
    assert recording.rows("SELECT count(norm) FROM layers") == [(0,)]


def test_a_mode_that_counts_operations_counts_none_of_ours(record: Record) -> None:
    model = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 1))

    def flops() -> int:
        with FlopCounterMode(display=False) as counter:
            train(lambda: model(torch.ones(2, 30)).sum(), torch.optim.SGD(model.parameters(), lr=0.1))
        return counter.get_total_flops()

    bare = flops()
    recording = record(preset="deep", overhead=1.0)
    assert flops() == bare
    assert recording.rows("SELECT count(*), count(loss) FROM steps") == [(12, 12)]


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_default_device_is_not_ours(record: Record, device: str) -> None:
    recording = record(preset="deep", overhead=1.0)
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.bias.fill_(math.nan)
    inputs = torch.ones(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.device(device):
        train(lambda: model(inputs).sum(), optimizer)
    assert recording.rows("SELECT count(*) > 0 FROM layers WHERE nan = 1") == [(True,)]
    assert recording.rows("SELECT count(*) FROM steps WHERE isnan(loss)") == [(12,)]


# Odd optimizers --------------------------------------------------------------------------------------------


def test_empty_groups(record: Record) -> None:
    recording = record(overhead=1.0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD([{"params": [], "lr": 0.5}, {"params": list(model.parameters())}], lr=0.1)
    train(lambda: model(torch.ones(2, 3)).sum(), optimizer)
    assert recording.rows("SELECT count(*), min(lr), max(lr) FROM steps") == [(12, 0.5, 0.5)]


def test_an_optimizer_that_loses_its_groups(record: Record) -> None:
    recording = record(overhead=1.0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(lambda: model(torch.ones(2, 3)).sum(), optimizer, steps=3)
    optimizer.param_groups = []
    train(lambda: model(torch.ones(2, 3)).sum(), optimizer, steps=3)
    assert recording.column("SELECT lr FROM steps ORDER BY step") == [0.1] * 3 + [None] * 3


def test_an_optimizer_with_state_of_its_own_kind(record: Record) -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.state["global"] = 3
            self.state["text"] = {"x": "y", "t": torch.ones(2)}
            return super().step(closure)

    recording = record(overhead=1.0)
    model = nn.Linear(3, 1)
    train(lambda: model(torch.ones(2, 3)).sum(), Odd(model.parameters(), lr=0.1))
    assert recording.rows("SELECT count(*), count(allocated_bytes) FROM steps") == [(12, 12)]


def test_a_learning_rate_of_every_kind(record: Record) -> None:
    recording = record()
    model = nn.Linear(3, 1)
    rates: list[Any] = [torch.tensor([0.5]), 1, torch.tensor(0.25, device="meta"), None]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rate in rates:
        for param in model.parameters():
            param.grad = None
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    assert recording.column("SELECT lr FROM steps ORDER BY step") == [0.5, 1.0, None, None]


def test_closures_that_raise(record: Record) -> None:
    recording = record()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    target = torch.randn(4, 1)
    is_broken = True

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(torch.ones(4, 3)), target)
        loss.backward()
        if is_broken:
            raise ValueError("broken")
        return loss

    with pytest.raises(ValueError, match="broken"):
        optimizer.step(closure)
    is_broken = False
    losses = [optimizer.step(closure).item() for _ in range(2)]
    assert recording.column("SELECT loss FROM steps ORDER BY step") == losses


def test_optimizers_are_copied_and_saved_as_ever(record: Record) -> None:
    recording = record(preset="deep", overhead=1.0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    train(lambda: model(torch.ones(2, 3)).sum(), optimizer, steps=4)
    file = io.BytesIO()
    torch.save((model, optimizer), file)
    file.seek(0)
    for again, stepping in (copy.deepcopy((model, optimizer)), torch.load(file, weights_only=False)):
        assert str(stepping.state_dict()) == str(optimizer.state_dict())
        train(lambda again=again: again(torch.ones(2, 3)).sum(), stepping, steps=2)  # type: ignore[misc]
    assert recording.rows("SELECT optimizer, count(*) FROM steps GROUP BY 1 ORDER BY 1") == [(1, 4), (2, 2), (3, 2)]


def train_until_traced(recording: Recording, model: nn.Module) -> None:
    """Stop where the next iteration is going to be traced."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        train(lambda: model(torch.ones(2, 3)).sum(), optimizer, steps=1)
        if recording.steps.tracer.is_on:
            return
    raise AssertionError("never traced")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_model_traced_by_jit_in_the_middle_has_nothing_of_ours_in_its_graph(record: Record) -> None:
    def graph() -> str:
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        return str(torch.jit.trace(model, torch.ones(2, 3)).inlined_graph)

    def kinds(graph: str) -> list[str]:
        return [line.split("=")[1].split("(")[0].split("[")[0].strip() for line in graph.splitlines() if " = " in line]

    bare = kinds(graph())
    recording = record(preset="deep", overhead=1.0)
    model = nn.Linear(3, 1)
    train_until_traced(recording, model)
    assert kinds(graph()) == bare


def test_a_trace_ends_if_no_step_follows_it(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that goes on calling its model after training pays for hooks for a while only."""
    monkeypatch.setattr("stethos.observe.module_trace._CALLS_PER_TRACE", 50)
    monkeypatch.setattr("stethos.observe.module_check._CALLS_PER_LOOK", 50)
    recording = record(preset="deep", overhead=1.0)
    model = nn.Linear(3, 1)
    train_until_traced(recording, model)
    for _ in range(60):
        model(torch.ones(2, 3))
    assert not torch.nn.modules.module._global_forward_hooks
    train(lambda: model(torch.ones(2, 3)).sum(), torch.optim.SGD(model.parameters(), lr=0.1), steps=12)
    assert len(recording.column("SELECT DISTINCT step FROM modules")) >= 3


def test_batches_of_scalars_and_of_nothing(record: Record) -> None:
    recording = record()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shapes: list[Any] = [[torch.tensor(1.0)], [], torch.tensor(2.0), None, "text", ([],), {"x": {}}]
    for _ in torch.utils.data.DataLoader(shapes, batch_size=None):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    assert recording.column("SELECT samples FROM steps ORDER BY step") == [1, 0, 1, 0, 0, 0, 0]


@pytest.mark.usefixtures("forgiving")
def test_a_part_that_keeps_failing_is_switched_off_without_disturbing_other_hooks(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch is going through its hooks when ours fails: none may be taken away then."""
    calls: list[str] = []
    recording = record()
    later = register_optimizer_step_pre_hook(lambda *_: calls.append("theirs"))

    def fail(*_: object) -> None:
        calls.append("ours")
        raise OSError("broken")

    monkeypatch.setattr("stethos.observe.step_recorder.StepRecorder.enter", fail)
    model = nn.Linear(3, 1)
    try:
        train(lambda: model(torch.ones(2, 3)).sum(), torch.optim.SGD(model.parameters(), lr=0.1), steps=15)
    finally:
        later.remove()
    assert (calls.count("ours"), calls.count("theirs")) == (20, 15)  # ten of the callback, ten of the inspection
    reasons = recording.column("SELECT reason FROM gaps WHERE what = 'steps'")
    assert reasons == ["OSError: broken", "OSError: broken; switched off after 10 failures"]
