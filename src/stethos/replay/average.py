"""The usual ways to average updates, each in the order of additions that programs use: their last bits differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Average = Callable[[Any, Sequence[Any]], "dict[str, Tensor]"]


def averages_of(sent: Sequence[Any]) -> list[tuple[str, Average]]:
    """Names and functions; by samples only where every client told them."""
    found: list[tuple[str, Average]] = [
        ("the mean, added one by one", lambda current, sent: _each(current, sent, _added)),
        ("the mean of the stacked updates", lambda current, sent: _each(current, sent, _stacked)),
    ]
    if sent and all(one.samples for one in sent):
        found += [
            ("the mean by samples, added one by one", lambda current, sent: _each(current, sent, _weighted)),
            ("the sum by samples, then divided", lambda current, sent: _each(current, sent, _divided)),
            ("the mean by samples, as a product", lambda current, sent: _each(current, sent, _product)),
        ]
    found.append(("rnd.aggregate()", _aggregated))
    return found


def median_of(sent: Sequence[Any]) -> dict[str, Tensor]:
    """The coordinate-wise median, as corrections take it; entries that are no floats are those of the first."""
    import torch

    made: dict[str, Tensor] = {}
    for name, value in sent[0].state.items():
        if value.is_floating_point():
            ranked = torch.stack([one.state[name] for one in sent]).sort(dim=0).values
            value = (ranked[(len(sent) - 1) // 2] + ranked[len(sent) // 2]) / 2
        made[name] = value
    return made


def _aggregated(current: Any, sent: Sequence[Any]) -> dict[str, Tensor]:
    """As `Round.aggregate` does it."""
    import torch

    is_known = all(one.samples for one in sent)
    weights = torch.tensor([float(one.samples) if is_known else 1.0 for one in sent], dtype=torch.float64)
    made: dict[str, Tensor] = {}
    for name, value in sent[0].state.items():
        if value.is_floating_point():
            stacked = torch.stack([one.state[name] for one in sent])
            value = torch.tensordot((weights / weights.sum()).to(stacked.dtype), stacked, dims=1)
        made[name] = value
    return made


def _each(current: Any, sent: Sequence[Any], average: Callable[[list[Any], list[int]], Any]) -> dict[str, Tensor]:
    """Floating-point entries averaged, counters the largest, and what nobody sent as it was."""
    import torch

    samples = [one.samples or 1 for one in sent]
    made: dict[str, Tensor] = {}
    for name, value in current.items():
        values = [one.state[name] for one in sent if name in one.state]
        if len(values) != len(sent) or not values:
            made[name] = value
        elif value.is_floating_point():
            made[name] = average(values, samples).to(value.dtype)
        else:
            made[name] = torch.stack(values).amax(dim=0)
    return made


def _added(values: list[Any], samples: list[int]) -> Any:
    return sum(values) / len(values)


def _stacked(values: list[Any], samples: list[int]) -> Any:
    import torch

    return torch.stack(values).mean(dim=0)


def _weighted(values: list[Any], samples: list[int]) -> Any:
    total = sum(samples)
    return sum(value * (count / total) for value, count in zip(values, samples, strict=True))


def _divided(values: list[Any], samples: list[int]) -> Any:
    return sum(value * count for value, count in zip(values, samples, strict=True)) / sum(samples)


def _product(values: list[Any], samples: list[int]) -> Any:
    import torch

    weights = torch.tensor(samples, dtype=torch.float64)
    flat = torch.stack([value.reshape(-1) for value in values])
    return ((weights / weights.sum()).to(flat.dtype) @ flat).reshape(values[0].shape)
