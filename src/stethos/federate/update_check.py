"""What a client's optimizer did against what the client sent.

Of the weights at most some tens of thousands are compared, the same ones each time. They are read when the first step
of a turn begins, and after the step that was the last one in the client's turn before; where a turn has more or fewer
steps, when the update is sent. A few hundred are read around its first steps, too.
"""

from __future__ import annotations

import math
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stethos.observe.layer_name import parameters_of

Vector = npt.NDArray[np.float64]
_MOST_ELEMENTS = 1 << 15
_MOST_CLIENTS = 4096
_ASKED = 2
_SOME, _FEW = 16, 64  # parameters and elements of each that are read more often
_TURNED = 0.99
_SAME, _SMALL = 0.3, 1e-2  # of the way of a parameter, and of all of them together: what rounding may do
Whose = tuple[str, str, str]  # run, federation, client
_LAST_STEPS: OrderedDict[Whose, int] = OrderedDict()


def setup_of(optimizer: torch.optim.Optimizer) -> int:
    """A number that is equal for optimizers of the same kind and settings, but for the learning rate."""
    settings = {name: value for name, value in optimizer.param_groups[0].items() if name not in ("params", "lr")}
    plain = {name: value for name, value in settings.items() if isinstance(value, bool | int | float | tuple)}
    return zlib.crc32(f"{type(optimizer).__name__} {sorted(plain.items())}".encode())


def strided(tensor: Any, stride: int) -> Vector:
    """Every so-many-th element of a tensor or array."""
    if isinstance(tensor, torch.Tensor):
        return tensor.detach().reshape(-1)[::stride].to(torch.float64).cpu().numpy()
    return np.asarray(tensor).reshape(-1)[::stride].astype(np.float64)


def stride_for(elements: int) -> int:
    return max(1, -(-elements // _MOST_ELEMENTS))


class UpdateCheck:
    """Follows the optimizers of one turn; `compare` is told what was sent."""

    def __init__(self, whose: Whose) -> None:
        self._whose = whose
        self._optimizers: dict[int, _Followed] = {}
        self.steps = 0
        self._expected = _LAST_STEPS.get(self._whose, 0)
        self._lr: float | None = None
        self._setup = 0
        self._found: dict[str, Any] = {}
        self._has_stepped = False
        self._asked = self._uncleared = 0
        self._between = _Between()

    @property
    def is_before_last(self) -> bool:
        """Whether the turn's last step is next, if it has as many as the client's turn before."""
        return self.steps == self._expected - 1 > 0

    def before_backward(self) -> None:
        """Whether gradients of the step before are still there; asked twice in a turn, of its smallest parameter."""
        if self._has_stepped and self._asked < _ASKED:
            self._asked += 1
            left = [one.grad for each in self._optimizers.values() for one in each.parameters if one.grad is not None]
            if left and bool(min(left, key=torch.numel).any()):
                self._uncleared += 1
        self._has_stepped = False

    def after_backward(self) -> None:
        self._between.after_backward(self.steps)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._between.before_step(optimizer, self.steps)
        if id(optimizer) not in self._optimizers and len(self._optimizers) < 4:
            self._optimizers[id(optimizer)] = _Followed(parameters_of(optimizer))
            rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
            if self._lr is None and isinstance(rate, float | int):
                self._lr = float(rate)
                self._setup = setup_of(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._between.after_step(optimizer, self.steps)
        self.steps += 1
        self._has_stepped = True
        if self.steps == self._expected:
            for one in self._optimizers.values():
                one.snap(self.steps)

    def compare(self, state: Any, base: Mapping[str, Any] | None, *, is_delta: bool) -> None:
        """What was sent: weights, or their change; `base` is the global model that the round began with, by name."""
        for one in self._optimizers.values():
            one.settle(self.steps)
        if self._optimizers:
            self._found = compared(list(self._optimizers.values()), state, base, is_delta=is_delta)

    def facts(self) -> dict[str, Any]:
        if self.steps:
            _LAST_STEPS[self._whose] = self.steps
            _LAST_STEPS.move_to_end(self._whose)
            while len(_LAST_STEPS) > _MOST_CLIENTS:
                _LAST_STEPS.popitem(last=False)
        known = {name: value for name, value in self._found.items() if value is not None}
        if self._lr is not None:
            known |= {"lr": self._lr, "setup": self._setup}
        if self.steps:
            known["steps"] = self.steps
        if self._uncleared:
            known["uncleared"] = self._uncleared
        return known | self._between.facts


class _Between:
    """What happens to some weights between the turn's first two steps, and to their gradients before the second.

    Nothing but the optimizer is to move weights, and nothing to turn a gradient, unless all clients do it.
    """

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self._weights: list[torch.Tensor] = []
        self._optimizer = 0
        self._start = self._end = self._gradients = np.zeros(0)

    def before_step(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        if steps == 0 and not self._optimizer:
            self._optimizer, self._weights = id(optimizer), _some_of(parameters_of(optimizer))
            self._start = _few(self._weights)
        elif steps == 1 and id(optimizer) == self._optimizer:
            moved, way = _few(self._weights) - self._end, self._end - self._start
            length = float(np.linalg.norm(way))
            if length > 0 and (by := short(float(np.linalg.norm(moved)) / length)):
                self.facts["between"] = by
            turned = _least_cosine(self._gradients, _few(self._weights, of_gradients=True), _sizes(self._weights))
            if turned is not None and turned < _TURNED:
                self.facts["turned"] = short(turned)

    def after_step(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        if steps == 0 and id(optimizer) == self._optimizer:
            self._end = _few(self._weights)

    def after_backward(self, steps: int) -> None:
        if steps == 1 and self._weights:
            self._gradients = _few(self._weights, of_gradients=True)


def _some_of(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Some parameters, spread over the model, the largest among them."""
    some = list(parameters)[:: -(-len(parameters) // _SOME) or 1]
    largest = max(parameters, key=torch.numel, default=None)
    return some if largest is None or any(one is largest for one in some) else [*some, largest]


def _sizes(parameters: Sequence[torch.Tensor]) -> list[int]:
    return [min(one.numel(), _FEW) for one in parameters]


def _few(parameters: Sequence[torch.Tensor], *, of_gradients: bool = False) -> Vector:
    """A few elements of each, in one read; of a gradient that is not there, zeros."""
    parts = []
    for one, size in zip(parameters, _sizes(parameters), strict=True):
        tensor = one.grad if of_gradients else one
        if tensor is None or tensor.is_sparse:
            tensor = torch.zeros_like(one)
        parts.append(tensor.detach().reshape(-1)[:: max(1, one.numel() // max(size, 1))][:size].float())
    return torch.cat(parts).cpu().numpy().astype(np.float64) if parts else np.zeros(0)


def _least_cosine(before: Vector, after: Vector, sizes: Sequence[int]) -> float | None:
    """Of each parameter the cosine of its gradient with the one that it had before: the least."""
    if before.shape != after.shape or not np.isfinite(before).all() or not np.isfinite(after).all():
        return None
    least = 1.0
    for old, new in zip(*(np.split(one, np.cumsum(sizes)[:-1]) for one in (before, after)), strict=True):
        lengths = float(np.linalg.norm(old)) * float(np.linalg.norm(new))
        if lengths > 0:
            least = min(least, float(old @ new) / lengths)
    return least


class _Followed:
    """The parameters of one optimizer: where they began, and where its last step left them."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters = list(parameters)
        self.stride = stride_for(sum(one.numel() for one in self.parameters))
        self.start = [strided(one, self.stride) for one in self.parameters]
        self.end: list[Vector] | None = None
        self._ended = 0

    def snap(self, step: int) -> None:
        self.end = [strided(one, self.stride) for one in self.parameters]
        self._ended = step

    def settle(self, steps: int) -> None:
        """The turn is over: where its end was not seen, the weights are as they are now."""
        if self._ended != steps:
            self.snap(steps)


@np.errstate(over="ignore", invalid="ignore")  # what a client sends may be anything
def compared(
    followed: Sequence[_Followed], state: Any, base: Mapping[str, Any] | None, *, is_delta: bool
) -> dict[str, Any]:  # fmt: skip
    """Dot products of the optimizers' way with what was sent, and how far from the global model it began."""
    named = dict(state) if isinstance(state, Mapping) else {str(place): one for place, one in enumerate(state)}
    bases = list(base.values()) if base is not None and len(base) == len(named) else None
    by_name = base if isinstance(state, Mapping) else dict(zip(named, bases, strict=True)) if bases else None
    ways, sent, begins, sizes = [], [], [], [0, 0]
    trained = sum(parameter.numel() for one in followed for parameter in one.parameters)
    for one in followed:
        for parameter, start, end, name in zip(
            one.parameters, one.start, one.end or (), names_of(one, named), strict=False
        ):
            sizes[0] += parameter.numel()
            if name is None or (by_name is None and not is_delta):
                continue
            sizes[1] += parameter.numel()
            values = strided(named[name], one.stride)
            from_base = strided(by_name[name], one.stride) if by_name is not None and name in by_name else None
            if not is_delta:
                if from_base is None or from_base.shape != values.shape:
                    continue
                values = values - from_base
            ways.append(end - start)
            sent.append(values)
            if from_base is not None and from_base.shape == start.shape:
                begins.append(start - from_base)
    if not ways:
        return {"shared": 0.0} if sizes[0] else {}
    numbers = _numbers(np.concatenate(ways), np.concatenate(sent), begins, sizes[1] / max(sizes[0], 1))
    return numbers | {"trained": trained, "unlike": _unlike(ways, sent)}


def _unlike(ways: Sequence[Vector], sent: Sequence[Vector]) -> float | None:
    """The share of parameters, each as a whole, of which something else was sent than the optimizer did."""
    whole = math.sqrt(sum(float(one @ one) for one in ways))
    if not 0 < whole < math.inf:
        return None
    others = [
        float(np.linalg.norm(way - given)) > _SAME * (float(np.linalg.norm(way)) + _SMALL * whole)
        for way, given in zip(ways, sent, strict=True)
    ]
    return short(sum(others) / len(others)) or None


def _numbers(way: Vector, sent: Vector, begins: list[Vector], shared: float) -> dict[str, Any]:
    is_known = np.isfinite(sent) & np.isfinite(way)
    known: dict[str, Any] = {
        "odd_sent": int((~np.isfinite(sent)).sum()) or None,
        "odd_way": int((~np.isfinite(way)).sum()) or None,
        "shared": round(shared, 3) if shared < 1 else None,
    }
    way, sent = way[is_known], sent[is_known]
    with np.errstate(over="ignore", invalid="ignore"):
        length = math.sqrt(float(way @ way)) if len(way) else 0.0
        if length > 0 and math.isfinite(length):
            known["sent_sent"] = short(float(sent @ sent) / length**2)
            known["way_sent"] = short(float(way @ sent) / length**2)
            support = sent != 0
            if 0 < support.sum() < len(sent):  # top-k sends some elements only
                known["kept"] = short(float(way[support] @ way[support]) / length**2)
            if begins:
                known["begin"] = short(float(np.linalg.norm(np.concatenate(begins))) / length)
        known["way"] = short(length)
    return known


def short(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def names_of(followed: _Followed, named: Mapping[str, Any]) -> list[str | None]:
    """Which entry of what was sent holds which parameter: the same memory, else the same shapes in the same order."""
    addresses = {
        one.data_ptr(): name for name, one in named.items() if isinstance(one, torch.Tensor) and one.numel() > 0
    }
    found = [addresses.get(one.data_ptr()) for one in followed.parameters]
    if all(found):
        return found
    left = [(name, tuple(one.shape)) for name, one in named.items() if hasattr(one, "shape")]
    matched: list[str | None] = []
    place = 0
    for parameter in followed.parameters:
        shape = tuple(parameter.shape)
        at = next((number for number in range(place, len(left)) if left[number][1] == shape), None)
        matched.append(None if at is None else left[at][0])
        place = place if at is None else at + 1
    return matched
