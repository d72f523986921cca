"""What each fault does to a client's data and to the update it sends; plain functions of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stethos.errors import UsageError
from stethos.lab.fault import Fault
from stethos.lab.flat import Layout

Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Scale:
    """Of the honest training data: number of classes, standard deviation of all inputs, and the largest input."""

    classes: int
    std: float
    largest: float


@dataclass(frozen=True, slots=True)
class Sending:
    """An update about to be sent: the global model, the one before it, and the layout of both."""

    current: Tensor
    previous: Tensor
    layout: Layout


def apply_data_fault(fault: Fault, samples: Samples, scale: Scale, draw: np.random.Generator) -> Samples:
    """The client's samples with the fault in them; those given stay as they are."""
    x, y = samples
    return _DATA[fault.kind](fault, x.clone(), y.clone(), scale, draw)


def apply_update_fault(fault: Fault, sent: Tensor, sending: Sending, draw: np.random.Generator) -> Tensor:
    """The weights that the client sends instead of `sent`."""
    return _UPDATE[fault.kind](fault, sent, sending, draw)


def check_layers(faults: Iterable[Fault], layout: Layout) -> None:
    """UsageError for a fault in a tensor that the model has not."""
    names = [entry.name for entry in layout.entries]
    for fault in faults:
        if fault.layer is not None and fault.layer not in names:
            raise UsageError(
                f"the fault {fault.kind!r} names the tensor {fault.layer!r}", hint=f"the model has {', '.join(names)}"
            )


def triggered(x: Tensor, largest: float) -> Tensor:
    """The inputs with the backdoor's trigger: an image's lower right corner, or the last features, at their largest.

    The corner is an eighth of the side, at least two pixels; of other inputs it is a twentieth of the features.
    """
    x = x.clone()
    flat = x.view(len(x), -1)
    side = math.isqrt(flat.shape[1])
    if side * side == flat.shape[1] and side >= 4:
        edge = max(2, side // 8)
        flat.view(len(x), side, side)[:, -edge:, -edge:] = largest
    else:
        flat[:, -max(1, flat.shape[1] // 20) :] = largest
    return x


def _some(draw: np.random.Generator, members: Tensor, share: float, of: int | None = None) -> Tensor:
    """A share of the members at random, at least one of them."""
    count = min(len(members), max(1, round(share * (len(members) if of is None else of))))
    return members[torch.from_numpy(draw.permutation(len(members))[:count])]


def _normal(draw: np.random.Generator, like: Tensor) -> Tensor:
    return torch.from_numpy(draw.standard_normal(tuple(like.shape), dtype=np.float32)).to(like.dtype)


def _label_flip(fault: Fault, x: Tensor, y: Tensor, scale: Scale, draw: np.random.Generator) -> Samples:
    assert fault.source is not None and fault.target is not None
    y[_some(draw, torch.nonzero(y.eq(fault.source)).flatten(), fault.strength)] = fault.target
    return x, y


def _label_noise(fault: Fault, x: Tensor, y: Tensor, scale: Scale, draw: np.random.Generator) -> Samples:
    chosen = _some(draw, torch.arange(len(y)), fault.strength)
    away = torch.from_numpy(draw.integers(1, scale.classes, size=len(chosen)))
    y[chosen] = (y[chosen] + away) % scale.classes
    return x, y


def _feature_noise(fault: Fault, x: Tensor, y: Tensor, scale: Scale, draw: np.random.Generator) -> Samples:
    return x + fault.strength * scale.std * _normal(draw, x), y


def _feature_shift(fault: Fault, x: Tensor, y: Tensor, scale: Scale, draw: np.random.Generator) -> Samples:
    return x + fault.strength * scale.std, y


def _backdoor(fault: Fault, x: Tensor, y: Tensor, scale: Scale, draw: np.random.Generator) -> Samples:
    assert fault.target is not None
    others = torch.nonzero(y.ne(fault.target)).flatten()
    if len(others):
        chosen = _some(draw, others, fault.strength, of=len(y))
        x[chosen], y[chosen] = triggered(x[chosen], scale.largest), fault.target
    return x, y


def _sign_flip(fault: Fault, sent: Tensor, sending: Sending, draw: np.random.Generator) -> Tensor:
    return sending.current - fault.strength * (sent - sending.current)


def _scaling(fault: Fault, sent: Tensor, sending: Sending, draw: np.random.Generator) -> Tensor:
    return sending.current + fault.strength * (sent - sending.current)


def _update_noise(fault: Fault, sent: Tensor, sending: Sending, draw: np.random.Generator) -> Tensor:
    noise = _normal(draw, sent)
    wanted: Tensor = fault.strength * torch.linalg.vector_norm(sent - sending.current)
    size: Tensor = torch.linalg.vector_norm(noise)
    return sent + noise * (wanted / size)


def _free_rider_zero(fault: Fault, sent: Tensor, sending: Sending, draw: np.random.Generator) -> Tensor:
    return sending.current.clone()


def _free_rider_delta(fault: Fault, sent: Tensor, sending: Sending, draw: np.random.Generator) -> Tensor:
    return sending.current + fault.strength * (sending.current - sending.previous)


def _filled(value: float) -> Callable[[Fault, Tensor, Sending, np.random.Generator], Tensor]:
    def fill(fault: Fault, sent: Tensor, sending: Sending, draw: np.random.Generator) -> Tensor:
        entries = {entry.name: entry for entry in sending.layout.entries}
        entry = entries[fault.layer] if fault.layer is not None else sending.layout.entries[0]
        spoilt = sent.clone()
        spoilt[_some(draw, torch.arange(entry.start, entry.end), fault.strength)] = value
        return spoilt

    return fill


_DATA = {
    "label-flip": _label_flip,
    "label-noise": _label_noise,
    "feature-noise": _feature_noise,
    "feature-shift": _feature_shift,
    "backdoor": _backdoor,
}
_UPDATE = {
    "sign-flip": _sign_flip,
    "scaling": _scaling,
    "update-noise": _update_noise,
    "nan": _filled(math.nan),
    "inf": _filled(math.inf),
    "free-rider-zero": _free_rider_zero,
    "free-rider-delta": _free_rider_delta,
}
