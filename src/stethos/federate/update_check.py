"""What a client's optimizer did against what the client sent.

Of the weights at most some tens of thousands are compared, the same ones each time. They are read when the first step
of a turn begins, and after the step that was the last one in the client's turn before; where a turn has more or fewer
steps, when the update is sent. A few hundred are read around its first steps, too. Where no optimizer steps, the
weights behind the first loss are followed instead, and each backward counts as a step: many loops update by hand.
"""

from __future__ import annotations

import math
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from stethos.federate.step_check import StepCheck, short
from stethos.observe.autograd_graph import nodes_of
from stethos.observe.layer_name import parameters_of

Vector = npt.NDArray[np.float64]
_MOST_ELEMENTS = 1 << 15
_MOST_CLIENTS = 4096
_ASKED = 2
_ROUNDED = 1e-5
_SAME, _SMALL = 0.3, 1e-2  # of the way of a parameter, and of all of them together: what rounding may do
Whose = tuple[str, str, str]  # run, federation, client
_LAST_STEPS: OrderedDict[Whose, int] = OrderedDict()
_WITH_OPTIMIZER: OrderedDict[Whose, bool] = OrderedDict()
_MOST_NODES = 4096  # of a graph that is searched for weights


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
        self._numbers: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()  # one may take another's id
        self._seen = 0
        self._by_hand: _Followed | None = None
        self._is_searched = False
        self.steps = 0
        self._expected = _LAST_STEPS.get(self._whose, 0)
        self._lr: float | None = None
        self._setup = 0
        self._found: dict[str, Any] = {}
        self._stepped: set[int] = set()  # optimizers that stepped since the last backward
        self._left_by: set[int] = set()  # those of them whose gradients were still there then
        self._asked = self._uncleared = 0
        self._between = StepCheck()

    @property
    def is_before_last(self) -> bool:
        """Whether the turn's last step is next, if it has as many as the client's turn before."""
        return self.steps == self._expected - 1 > 0

    def before_backward(self, loss: Any = None) -> None:
        """Whether gradients of the step before are still there; asked twice in a turn, of its smallest parameter.

        They are a fault only if the same optimizer steps next: those of a model that is trained no more stay where they
        are, as where a turn trains a shared model and then a personal one.
        The weights behind the turn's first loss are followed until an optimizer is seen; not in turns of a client whose
        turn before had one.
        """
        if not self._is_searched and not self._optimizers:
            self._is_searched = True
            weights = weights_behind(loss) if self._whose not in _WITH_OPTIMIZER else []
            self._by_hand = _Followed(weights) if weights else None
        if self._by_hand is not None:
            self.steps += 1
        if self._stepped:
            is_asked = self._asked < _ASKED
            self._asked += is_asked
            self._left_by = {one for one in self._stepped if is_asked and self._has_gradients(one)}
            self._stepped = set()

    def _number_of(self, optimizer: torch.optim.Optimizer) -> int:
        if optimizer not in self._numbers:
            self._numbers[optimizer] = self._seen
            self._seen += 1
        return self._numbers[optimizer]

    def _has_gradients(self, optimizer: int) -> bool:
        followed = self._optimizers.get(optimizer)
        left = [one.grad for one in followed.parameters if one.grad is not None] if followed is not None else []
        return bool(left) and bool(min(left, key=torch.numel).any())

    def after_backward(self) -> None:
        self._between.after_backward(self.steps)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._by_hand is not None:
            self._by_hand, self.steps = None, 0
        number = self._number_of(optimizer)
        if number in self._left_by:
            self._uncleared += 1
            self._left_by = set()
        self._between.before_step(optimizer, self.steps)
        if number not in self._optimizers and len(self._optimizers) < 4:
            self._optimizers[number] = _Followed(parameters_of(optimizer))
            rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
            if self._lr is None and isinstance(rate, float | int):
                self._lr = float(rate)
                self._setup = setup_of(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._between.after_step(optimizer, self.steps)
        self.steps += 1
        self._stepped.add(self._number_of(optimizer))
        if self.steps == self._expected:
            for one in self._optimizers.values():
                one.snap(self.steps)

    def compare(self, state: Any, base: Mapping[str, Any] | None, *, is_delta: bool) -> None:
        """What was sent: weights, or their change; `base` is the global model that the round began with, by name."""
        followed = [*self._optimizers.values()] or ([self._by_hand] if self._by_hand is not None else [])
        for one in followed:
            one.settle(self.steps)
        if followed:
            self._found = compared(followed, state, base, is_delta=is_delta)

    def facts(self) -> dict[str, Any]:
        if self.steps:
            _remember(_LAST_STEPS, self._whose, self.steps)
        if self._optimizers:
            _remember(_WITH_OPTIMIZER, self._whose, True)
        known = {name: value for name, value in self._found.items() if value is not None}
        if self._expected:  # the client's turn before has said it
            known.pop("trained", None)
        if self._lr is not None:
            known |= {"lr": self._lr} if self._expected else {"lr": self._lr, "setup": self._setup}
        if self.steps:
            known["steps"] = self.steps
        if self._uncleared:
            known["uncleared"] = self._uncleared
        return known | self._between.facts


def _remember(kept: OrderedDict[Whose, Any], whose: Whose, value: Any) -> None:
    kept[whose] = value
    kept.move_to_end(whose)
    while len(kept) > _MOST_CLIENTS:
        kept.popitem(last=False)


def weights_behind(loss: Any) -> list[torch.Tensor]:
    """The leaves that a loss is differentiated by, those of the first layers first."""
    if not isinstance(loss, torch.Tensor) or loss.grad_fn is None:
        return []
    found = [getattr(node, "variable", None) for node, _ in nodes_of(loss.grad_fn, _MOST_NODES)]
    return [one for one in reversed(found) if isinstance(one, torch.Tensor) and one.is_floating_point()]


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
    ways, sent, begins, starts, sizes = [], [], [], [], [0, 0]
    trained = sum(parameter.numel() for one in followed for parameter in one.parameters)
    for one in followed:
        for parameter, start, end, name in zip(
            one.parameters, one.start, one.end or (), names_of(one, named, by_name), strict=False
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
            starts.append(start)
            sent.append(values)
            if from_base is not None and from_base.shape == start.shape:
                begins.append(start - from_base)
    if not ways:
        return {"shared": 0.0} if sizes[0] else {}
    numbers = _numbers(np.concatenate(ways), np.concatenate(sent), begins, sizes[1] / max(sizes[0], 1))
    return numbers | {"trained": trained, "unlike": _unlike(ways, sent), "outwards": _outwards(ways, starts)}


def _outwards(ways: Sequence[Vector], starts: Sequence[Vector]) -> float | None:
    """How far the way leads to larger weights: a cosine, nothing unless it is said. Decay leads inwards."""
    lengths = math.sqrt(sum(float(one @ one) for one in ways) * sum(float(one @ one) for one in starts))
    along = sum(float(way @ start) for way, start in zip(ways, starts, strict=True))
    return short(along / lengths, 2) if 0 < lengths < math.inf and abs(along) > _SMALL * lengths else None


def _unlike(ways: Sequence[Vector], sent: Sequence[Vector]) -> float | None:
    """The share of parameters, each as a whole, of which something else was sent than the optimizer did."""
    whole = math.sqrt(sum(float(one @ one) for one in ways))
    if not 0 < whole < math.inf:
        return None
    others = [
        float(np.linalg.norm(way - given)) > _SAME * (float(np.linalg.norm(way)) + _SMALL * whole)
        for way, given in zip(ways, sent, strict=True)
    ]
    return short(sum(others) / len(others), 3) or None


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
            rest = float(np.linalg.norm(sent - way)) / length
            known["rest"] = short(rest, 3) if rest > _ROUNDED else None  # of what was sent; nothing unless it is said
            support = sent != 0
            if 0 < support.sum() < len(sent):  # top-k sends some elements only
                known["kept"] = short(float(way[support] @ way[support]) / length**2)
            if begins:
                known["begin"] = short(float(np.linalg.norm(np.concatenate(begins))) / length)
        known["way"] = short(length, 4)
    return known


def names_of(
    followed: _Followed, named: Mapping[str, Any], base: Mapping[str, Any] | None = None
) -> list[str | None]:  # fmt: skip
    """Which entry of what was sent holds which parameter: the same memory, else the same shapes in the same order.

    Where parameters did not begin as these entries of `base` do, each is the one of its shape that it began nearest to.
    """
    addresses = {
        one.data_ptr(): name for name, one in named.items() if isinstance(one, torch.Tensor) and one.numel() > 0
    }
    found = [addresses.get(one.data_ptr()) for one in followed.parameters]
    if all(found):
        return found
    shapes = {name: tuple(one.shape) for name, one in named.items() if hasattr(one, "shape")}
    ordered = _in_order([tuple(one.shape) for one in followed.parameters], shapes)
    if base is None:
        return ordered
    known = {name: strided(base[name], followed.stride) for name in shapes if name in base}
    if all(
        name in known and _apart(start, known[name]) == 0 for name, start in zip(ordered, followed.start, strict=True)
    ):
        return ordered
    return _nearest(followed, shapes, known)


def _in_order(wanted: Sequence[tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]) -> list[str | None]:
    left = list(shapes.items())
    matched: list[str | None] = []
    place = 0
    for shape in wanted:
        at = next((number for number in range(place, len(left)) if left[number][1] == shape), None)
        matched.append(None if at is None else left[at][0])
        place = place if at is None else at + 1
    return matched


def _nearest(
    followed: _Followed, shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, Vector]
) -> list[str | None]:  # fmt: skip
    pairs = [
        (_apart(start, known[name]), place, name)
        for place, (parameter, start) in enumerate(zip(followed.parameters, followed.start, strict=True))
        for name in known
        if shapes[name] == tuple(parameter.shape)
    ]
    matched: list[str | None] = [None] * len(followed.parameters)
    taken: set[str] = set()
    for _, place, name in sorted(pairs):
        if matched[place] is None and name not in taken:
            matched[place] = name
            taken.add(name)
    return matched


def _apart(start: Vector, values: Vector) -> float:
    distance = float(np.abs(values - start).sum()) if values.shape == start.shape else math.inf
    return distance if math.isfinite(distance) else math.inf
