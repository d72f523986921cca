"""Whatever a loss is made of, its row has the number that `item()` gives, and reading it leaves no trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recording import Recording
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from stethos.native import NATIVE
from stethos.observe import hotpath

Record = Callable[..., Recording]
Weight = torch.Tensor


class Named(torch.Tensor):
    """A subclass that changes nothing."""


def imaginary(weight: Weight) -> torch.Tensor:
    """A view of a conjugate: its sign is turned when it is read, not in memory."""
    return torch.complex(weight.sum(), weight.sum() * 3).conj().imag


def in_another_place(weight: Weight) -> torch.Tensor:
    return torch.stack([weight.sum(), weight.sum() * 7, weight.sum()])[1]


def checkpointed(weight: Weight) -> torch.Tensor:
    return checkpoint(lambda x: (x * 2).tanh().sum(), weight, use_reentrant=False)


SMALLEST = 2.0**-149
LOSSES: dict[str, Callable[[Weight], torch.Tensor]] = {
    "float32": lambda w: w.sum(),
    "not a number": lambda w: w.sum() * math.nan,
    "infinite": lambda w: w.sum() * math.inf,
    "minus infinite": lambda w: w.sum() * -math.inf,
    "minus zero": lambda w: w.sum() * -0.0,
    "subnormal": lambda w: w.sum() * 0 + SMALLEST,
    "float64": lambda w: w.double().sum() / 3,
    "float64 out of float32": lambda w: w.double().sum() * 1e300,
    "float16": lambda w: w.half().sum() / 3,
    "bfloat16": lambda w: w.bfloat16().sum() / 3,
    "one dimension": lambda w: w.sum().reshape(1),
    "three dimensions": lambda w: w.sum().reshape(1, 1, 1) * 5,
    "expanded": lambda w: w.sum().expand(1, 1),
    "a view": in_another_place,
    "negated lazily": lambda w: torch._neg_view(w.sum() * 2),
    "imaginary part": imaginary,
    "real part": lambda w: torch.complex(w.sum(), w.sum() * 3).conj().real,
    "a subclass": lambda w: w.sum().as_subclass(Named),
    "a parameter": lambda w: nn.Parameter(w.detach().sum() * 4),
    "copied on write": lambda w: torch._lazy_clone(w.sum() * 6),
    "dense from sparse": lambda w: torch.sparse.sum(w.to_sparse()),
    "checkpointed": checkpointed,
}  # fmt: skip
NO_LOSSES: dict[str, Callable[[Weight], torch.Tensor]] = {
    "several numbers": lambda w: w * 2,
    "none": lambda w: w[:0],
    "complex": lambda w: torch.complex(w.sum(), w.sum()),
    "an integer": lambda w: torch.tensor(3),
    "without gradient": lambda w: w.detach().sum(),
    "sparse": lambda w: w.to_sparse(),
}


@pytest.fixture(params=["C", "Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Through which callbacks it goes; where nothing is built, both times those in Python."""
    if request.param == "Python":
        monkeypatch.setattr(hotpath, "NATIVE", None)
    return "Python" if NATIVE is None else str(request.param)


def weight_and_optimizer() -> tuple[Weight, torch.optim.Optimizer]:
    weight = torch.tensor([0.1, 0.7, -0.3], requires_grad=True)
    return weight, torch.optim.SGD([weight], lr=0.0)


def bits(value: float | None) -> object:
    """Equal where two numbers are, also two that are none."""
    return value if value is None or not math.isnan(value) else "nan"


def test_a_loss_is_read_as_item_reads_it(record: Record, way: str) -> None:
    recording = record(preset="light", overhead=0.0)
    weight, optimizer = weight_and_optimizer()
    expected = []
    for loss_of in LOSSES.values():
        loss = loss_of(weight)
        expected.append(float(loss.item()))
        loss.backward()
        with torch.no_grad():
            loss.mul_(0)  # what becomes of it later is of no interest
        optimizer.step()
    found = recording.column("SELECT loss FROM steps ORDER BY step")
    assert dict(zip(LOSSES, map(bits, found), strict=True)) == dict(zip(LOSSES, map(bits, expected), strict=True))
    assert [math.copysign(1, value) for value in found] == [math.copysign(1, value) for value in expected]
    assert recording.rows("SELECT * FROM gaps") == []


def test_what_is_no_loss_fails_as_it_does_without_us(record: Record, way: str) -> None:
    weight, optimizer = weight_and_optimizer()

    def complaint(loss_of: Callable[[Weight], torch.Tensor]) -> str:
        with pytest.raises(RuntimeError) as raised:
            loss_of(weight).backward()
        return str(raised.value)

    bare = {name: complaint(loss_of) for name, loss_of in NO_LOSSES.items()}
    recording = record(preset="light", overhead=0.0)
    assert {name: complaint(loss_of) for name, loss_of in NO_LOSSES.items()} == bare
    weight.sum().backward()
    optimizer.step()
    assert recording.column("SELECT loss FROM steps") == [weight.sum().item()]
    assert recording.rows("SELECT * FROM gaps") == []


def test_a_loss_without_a_number_is_null(record: Record, way: str) -> None:
    recording = record(preset="light", overhead=0.0)
    meta = torch.ones(3, device="meta", requires_grad=True)
    optimizer = torch.optim.SGD([meta], lr=0.1)
    meta.sum().backward()
    optimizer.step()
    with FakeTensorMode():
        fake = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([fake], lr=0.1)
        fake.sum().backward()
        optimizer.step()
    assert recording.column("SELECT loss FROM steps") == [None, None]


def test_a_transform_of_functions_is_left_alone(record: Record, way: str) -> None:
    recording = record(preset="light", overhead=0.0)
    weight, optimizer = weight_and_optimizer()

    def inner(x: torch.Tensor) -> torch.Tensor:
        loss = (x * x).sum()
        with pytest.raises(RuntimeError):
            loss.backward()
        return loss

    gradient = torch.func.grad(inner)(weight.detach())
    assert torch.equal(gradient, 2 * weight.detach())
    (weight * gradient).sum().backward()
    optimizer.step()
    assert recording.rows("SELECT count(*), count(loss) FROM steps") == [(1, 1)]


def test_reading_a_loss_is_not_seen_by_those_who_watch_torch(record: Record, way: str) -> None:
    seen: list[str] = []

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    weight, optimizer = weight_and_optimizer()

    def sights() -> list[str]:
        seen.clear()
        with Operators():
            weight.sum().backward()
        if way == "C":
            with Functions():
                weight.sum().backward()
            with torch.profiler.profile() as profile:
                weight.sum().backward()
            seen.extend(event.key for event in profile.key_averages())
        return sorted(seen)

    weight.sum().backward()  # the first one makes the gradient, later ones add to it
    bare = sights()
    recording = record(preset="light", overhead=0.0)
    assert sights() == bare
    optimizer.step()
    losses = 3 if way == "C" else 1
    assert recording.column("SELECT loss FROM steps") == [pytest.approx(losses * weight.sum().item())]


def test_ctrl_c_while_a_loss_is_read_comes_out(record: Record, way: str) -> None:
    class Interrupted(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise KeyboardInterrupt

    recording = record(preset="light", overhead=0.0)
    weight, optimizer = weight_and_optimizer()
    loss = weight.sum()
    with pytest.raises(KeyboardInterrupt), Interrupted():
        torch.autograd.backward(loss)
    weight.sum().backward()
    optimizer.step()
    assert recording.column("SELECT loss FROM steps") == [weight.sum().item()]


def test_a_torch_that_does_not_describe_its_tensors_is_asked_for_the_item(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = hotpath._parts
    api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    monkeypatch.setattr(
        hotpath, "_parts", lambda *given: tuple(None if part is api else part for part in parts(*given))
    )
    recording = record(preset="light", overhead=0.0)
    weight, optimizer = weight_and_optimizer()
    weight.sum().backward()
    optimizer.step()
    assert recording.column("SELECT loss FROM steps") == [weight.sum().item()]
