"""One execution of a forward and backward pass, as checksums of everything it computes, and the vote between several.

A checksum is the sum of a tensor's bits as whole numbers: one changed bit changes it. On a GPU it stays there until
the executions are compared.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

import torch

from stethos.observe.repeat.module_state import CannotRepeatError, tensors_in

Kind = Literal["activation", "gradient"]
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_RESULTS = 50_000


class Result(NamedTuple):
    """What is compared: a module's output or a parameter's gradient, `times` as the same layer may run often."""

    kind: Kind
    layer: str
    times: int


class Execution:
    """The checksums of one execution, in the order in which their tensors were made."""

    def __init__(self) -> None:
        self._sums: dict[Result, list[torch.Tensor | None]] = {}
        self._times: Counter[tuple[Kind, str]] = Counter()

    def note(self, kind: Kind, layer: str, value: object) -> None:
        """Take in the tensors of a result."""
        times = self._times[kind, layer]
        self._times[kind, layer] += 1
        if len(self._sums) >= _MOST_RESULTS:
            raise CannotRepeatError(f"more than {_MOST_RESULTS:,} results would have to be compared")
        self._sums[Result(kind, layer, times)] = [sum_of(tensor) for tensor in tensors_in(value)]

    def numbers(self) -> dict[Result, tuple[int | None, ...]]:
        """By result its checksums; waits for a device once."""
        flat = [one for sums in self._sums.values() for one in sums]
        numbers = iter(numbers_in(flat))
        return {result: tuple(next(numbers) for _ in sums) for result, sums in self._sums.items()}


def sum_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The sum of a tensor's bits, where the tensor is; None for one that cannot be read so."""
    words = _WORDS.get(tensor.element_size())
    if words is None or tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
        return None
    return tensor.detach().view(words).sum()


def numbers_in(sums: list[torch.Tensor | None]) -> list[int | None]:
    """Sums as numbers: one copy from each device."""
    found: list[int | None] = [None] * len(sums)
    by_device: dict[torch.device, list[int]] = {}
    for place, one in enumerate(sums):
        if one is not None:
            by_device.setdefault(one.device, []).append(place)
    for places in by_device.values():
        stacked = torch.stack([one for place in places if (one := sums[place]) is not None])
        for place, number in zip(places, stacked.tolist(), strict=True):
            found[place] = number
    return found


class Vote(NamedTuple):
    """What several executions say. `odd` is the one that differs from all others; None where more than one do."""

    is_equal: bool
    odd: int | None = None
    first: Result | None = None  # that differs
    compared: int = 0


def vote(executions: list[dict[Result, tuple[int | None, ...]]]) -> Vote:
    """Compare executions of the same pass; CannotRepeatError if they did not run the same modules.

    A gradient that only some of them have is left out.
    """
    activations = [[key for key in one if key.kind == "activation"] for one in executions]
    if any(keys != activations[0] for keys in activations):
        raise CannotRepeatError("its forward pass runs other modules when it is repeated")
    common = [key for key in executions[0] if all(key in one for one in executions)]
    groups = Counter(tuple(one[key] for key in common) for one in executions)
    if len(groups) == 1:
        return Vote(True, compared=len(common))
    usual, count = groups.most_common(1)[0]
    outliers = [place for place, one in enumerate(executions) if tuple(one[key] for key in common) != usual]
    odd = outliers[0] if count == len(executions) - 1 else None
    differing = executions[outliers[0]]
    first = next(key for key, value in zip(common, usual, strict=True) if differing[key] != value)
    return Vote(False, odd, first, len(common))
