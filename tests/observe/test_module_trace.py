"""What a module trace sees, and that training does not notice it."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import checkpoint

from stethos.observe import module_trace
from stethos.observe.layer_name import module_names
from stethos.observe.module_trace import ModuleSpan, ModuleTrace
from stethos.observe.statistic import STATISTICS, statistics_of


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    """Forget what other tests compiled in this process."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None:
        monkeypatch.setattr(frames, "FRAME_COUNTER", 0)


def unguarded(function):
    return function


class Net(nn.Module):
    """In-place ReLU, dropout and a checkpointed block."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.stem = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Dropout(0.3))
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.ReLU(inplace=True))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.head(x)


def backward(trace: ModuleTrace | None, loss: torch.Tensor) -> None:
    if trace is None:
        loss.backward()
        return
    trace.in_backward = True
    try:
        loss.backward()
    finally:
        trace.in_backward = False
        trace.backward_ended()


def trained(
    trace: ModuleTrace | None, *, reentrant: bool
) -> tuple[list[torch.Tensor], torch.Tensor, list[list[ModuleSpan]]]:
    torch.manual_seed(3)
    model = Net(reentrant)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    seen = []
    for _ in range(6):
        if trace is not None:
            assert trace.start()
        loss = nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(0, 3, (16,)))
        backward(trace, loss)
        if trace is not None:
            trace.stop()
            seen.append(trace.take(module_names(model)))
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()], torch.get_rng_state(), seen


@pytest.mark.parametrize("activations", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_training_is_bit_identical_with_the_trace_on_every_step(reentrant, activations):
    plain, plain_state, _ = trained(None, reentrant=reentrant)
    traced, traced_state, seen = trained(ModuleTrace(unguarded, activations=activations), reentrant=reentrant)
    assert all(torch.equal(a, b) for a, b in zip(plain, traced, strict=True))
    assert torch.equal(plain_state, traced_state)
    assert all(seen)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_not_counted_again(reentrant):
    _, _, seen = trained(ModuleTrace(unguarded), reentrant=reentrant)
    for spans in seen:
        forward = [span.module for span in spans if span.stage == "forward"]
        assert sorted(forward) == sorted(
            ["stem.0", "stem.1", "stem.2", "stem", "block.0", "block.1", "block.2", "block", "head", "Net"]
        )


def spans_of(model: nn.Module, x: torch.Tensor, base_bytes: int = 0) -> dict[tuple[str, str], ModuleSpan]:
    trace = ModuleTrace(unguarded)
    assert trace.start(base_bytes)
    backward(trace, model(x).sum())
    trace.stop()
    return {(span.module, span.stage): span for span in trace.take(module_names(model))}


class FakeClock:
    """Each look at the clock advances it; `work_ns` stands for the modules' own time."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


class Working(nn.Module):
    def __init__(self, clock: FakeClock, forward_ns: int, backward_ns: int) -> None:
        super().__init__()
        self.clock, self.forward_ns, self.backward_ns = clock, forward_ns, backward_ns

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now_ns += self.forward_ns
        clock, backward_ns = self.clock, self.backward_ns

        class Work(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                clock.now_ns += backward_ns
                return grad * 2

        return Work.apply(x)


def test_durations_include_children_and_exclude_the_hooks(monkeypatch):
    clock = FakeClock()

    def slow_storage(tensor: torch.Tensor) -> int:
        clock.now_ns += 50_000  # the hooks' own work
        return id(tensor)

    monkeypatch.setattr(module_trace, "monotonic_ns", clock)
    monkeypatch.setattr(module_trace, "_storage", slow_storage)
    model = nn.Sequential(Working(clock, 1000, 100_000), Working(clock, 2000, 200_000))
    spans = spans_of(model, torch.ones(3, requires_grad=True))
    durations = {key: span.duration_ns for key, span in spans.items()}
    assert durations[("0", "forward")] == pytest.approx(1000, abs=10)
    assert durations[("1", "forward")] == pytest.approx(2000, abs=10)
    assert durations[("Sequential", "forward")] == pytest.approx(3000, abs=10)
    assert durations[("0", "backward")] == pytest.approx(100_000, abs=20)
    assert durations[("1", "backward")] == pytest.approx(200_000, abs=20)
    assert durations[("Sequential", "backward")] == pytest.approx(300_000, abs=20)


def test_backward_spans_come_in_the_order_autograd_goes():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    trace = ModuleTrace(unguarded)
    trace.start()
    backward(trace, model(torch.randn(3, 4)).sum())
    trace.stop()
    spans = trace.take(module_names(model))
    assert [span.module for span in spans if span.stage == "forward"] == ["0", "1", "2", "Sequential"]
    backwards = [span for span in spans if span.stage == "backward"]
    assert {span.module for span in backwards[:2]} == {"2", "Sequential"}
    assert [span.module for span in backwards[2:]] == ["1", "0"]
    assert all(span.duration_ns > 0 for span in spans)


def test_new_output_memory_is_counted_once_and_added_up():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Identity(), nn.Flatten(0), nn.Dropout(0.5))
    spans = spans_of(model, torch.randn(3, 4), base_bytes=1000)
    allocated = {name: span.allocated_bytes for (name, stage), span in spans.items() if stage == "forward"}
    assert allocated == {"0": 60, "1": 0, "2": 0, "3": 0, "4": 60, "Sequential": 120}
    assert spans[("0", "forward")].alive_bytes == 1060
    assert spans[("Sequential", "forward")].alive_bytes == 1120
    assert spans[("0", "backward")].allocated_bytes is None


def test_an_output_that_is_a_parameter_is_not_new():
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.ones(3))

        def forward(self, _: torch.Tensor) -> torch.Tensor:
            return self.value.view(3)

    assert spans_of(Constant(), torch.ones(1))[("Constant", "forward")].allocated_bytes == 0


class Keyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Bilinear(4, 4, 2)

    def forward(self, x: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        x = self.first(input=x)
        return {"out": [self.second(input1=x, input2=x)]}


def test_arguments_by_name_and_nested_outputs_are_seen():
    model = Keyword()
    trace = ModuleTrace(unguarded)
    trace.start()
    backward(trace, model(torch.randn(3, 4))["out"][0].sum())
    trace.stop()
    spans = trace.take(module_names(model))
    assert {(span.module, span.stage) for span in spans} == {
        (name, stage) for name in ("first", "second", "Keyword") for stage in ("forward", "backward")
    }
    allocated = {span.module: span.allocated_bytes for span in spans if span.stage == "forward"}
    assert allocated == {"first": 48, "second": 24, "Keyword": 72}


def test_an_evaluation_without_gradients_is_not_counted():
    trace = ModuleTrace(unguarded)
    trace.start()
    with torch.no_grad():
        nn.Sequential(nn.Linear(2, 2))(torch.ones(1, 2))
    trace.stop()
    assert trace.take() == []


def test_sparse_outputs_are_passed_by():
    class Sparse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to_sparse()

    trace = ModuleTrace(unguarded)
    trace.start()
    Sparse()(torch.eye(3))
    trace.stop()
    assert [span.allocated_bytes for span in trace.take()] == [0]


def test_unknown_modules_are_named_by_their_class():
    trace = ModuleTrace(unguarded)
    trace.start()
    nn.Linear(2, 2)(torch.ones(1, 2))
    trace.stop()
    assert [span.module for span in trace.take()] == ["Linear"]
    assert trace.take() == []


def test_other_threads_pass_through():
    trace = ModuleTrace(unguarded)
    trace.start()
    thread = threading.Thread(target=nn.Linear(2, 2), args=(torch.ones(1, 2),))
    thread.start()
    thread.join()
    nn.ReLU()(torch.ones(1))
    trace.stop()
    assert [span.module for span in trace.take()] == ["ReLU"]


def global_hooks() -> list[int]:
    tables = (
        torch_module._global_forward_hooks,
        torch_module._global_forward_pre_hooks,
        torch_module._global_forward_hooks_always_called,
        torch_module._global_forward_hooks_with_kwargs,
    )
    return [len(table) for table in tables]


def test_stop_undoes_everything():
    before = global_hooks()
    trace = ModuleTrace(unguarded)
    trace.start()
    trace.start()
    assert trace.is_on
    loss = nn.Linear(2, 2)(torch.ones(1, 2)).sum()
    trace.stop()
    assert not trace.is_on
    assert global_hooks() == before
    loss.backward()
    trace.backward_ended()
    nn.Linear(2, 2)(torch.ones(1, 2))
    assert [span.stage for span in trace.take()] == ["forward"]


def test_no_tensor_or_module_is_kept():
    trace = ModuleTrace(unguarded, activations=True)
    trace.start()
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    out = model(torch.ones(1, 2))
    seen = [weakref.ref(out), weakref.ref(model)]
    gc.disable()
    try:
        del out, model
        assert [ref() for ref in seen] == [None, None]
    finally:
        gc.enable()
    trace.stop()


def test_a_forward_that_raises_is_closed_and_its_error_passes():
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("mine")

    trace = ModuleTrace(unguarded)
    trace.start()
    with pytest.raises(ValueError, match="mine"):
        nn.Sequential(nn.ReLU(), Failing())(torch.ones(1))
    nn.Identity()(torch.ones(1))
    trace.stop()
    assert [span.module for span in trace.take()] == ["ReLU", "Failing", "Sequential", "Identity"]


def test_a_call_whose_pre_hook_raised_does_not_confuse_the_next():
    def refuse(module, args):
        raise ValueError("no")

    inner = nn.ReLU()
    inner.register_forward_pre_hook(refuse)

    class Tolerant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.inner(x)
            except ValueError:
                return x + 1

    trace = ModuleTrace(unguarded)
    trace.start()
    Tolerant()(torch.ones(1))
    trace.stop()
    assert trace.take()[-1].module == "Tolerant"


def test_every_callback_goes_through_the_guard():
    failures = []

    def guarded(function):
        def call(*args):
            failures.append(function.__name__)

        return call

    trace = ModuleTrace(guarded)
    trace.start()
    nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
    trace.stop()
    assert failures == ["_before_forward", "_after_forward"]
    assert trace.take() == []


def test_activations_are_the_leaves_first_outputs_before_they_are_overwritten():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True))
    x = torch.randn(3, 4)
    trace = ModuleTrace(unguarded, activations=True)
    trace.start()
    out = model(x)
    trace.stop()
    names, late = trace.take_activations(module_names(model))
    assert names == ["0", "1"]
    np.testing.assert_array_equal(late.table, statistics_of([model[0](x), out]))
    assert trace.take_activations()[1].table.shape == (len(STATISTICS), 0)


def test_a_model_with_a_compiled_part_switches_the_trace_off_before_it_runs():
    part = nn.Linear(2, 2)
    part.compile(backend="eager")
    before = global_hooks()
    trace = ModuleTrace(unguarded)
    trace.start()
    seen_inside = []

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = part

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen_inside.append(global_hooks())
            return x

    Outer()(torch.ones(1, 2))
    assert seen_inside == [before]
    assert not trace.is_on
    assert trace.take() == []


def test_nothing_is_traced_once_something_was_compiled(monkeypatch):
    class Frames:
        FRAME_COUNTER = 1

    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", Frames)
    trace = ModuleTrace(unguarded)
    assert not trace.start()
    assert not trace.is_on


def test_torch_func_transforms_pass_through():
    trace = ModuleTrace(unguarded)
    trace.start()
    model = nn.Linear(2, 2)
    torch.func.vmap(model)(torch.ones(3, 2))
    trace.stop()
    assert trace.take() == []


def test_the_pinned_place_where_torch_counts_compiled_frames_exists():
    from torch._dynamo import convert_frame

    assert isinstance(convert_frame.FRAME_COUNTER, int)
