"""Two states compared bit by bit, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stethos.replay.tensorfile import bytes_in

State = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """A layer that is not the same: in how many elements of how many, and by how much at most."""

    layer: str
    elements: int
    of: int
    largest: float
    relative: float

    def __str__(self) -> str:
        if not self.of:
            return f"{self.layer}: only one of the two has it, or their shapes differ"
        return f"{self.layer}: {self.elements:,} of {self.of:,} elements, by {self.largest:.3g} at most"


def differences(made: State, recorded: State) -> list[LayerDifference]:
    """The layers that differ, in the order of the recorded state. A NaN equals itself if its bits do."""
    found = []
    for name in dict.fromkeys([*recorded, *made]):
        a, b = made.get(name), recorded.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            found.append(LayerDifference(str(name), 0, 0, math.nan, math.nan))
        elif (bytes_in(a) != bytes_in(b)).any():
            found.append(_difference(str(name), a, b))
    return found


def _difference(name: str, a: Any, b: Any) -> LayerDifference:
    import torch

    size = a.element_size()
    odd = (bytes_in(a) != bytes_in(b)).reshape(-1, size).any(axis=1)
    away = (a.double() - b.double()).abs()
    largest = float(torch.nan_to_num(away, nan=math.inf).max())
    scale = float(torch.nan_to_num(b.double(), nan=0.0, posinf=0.0, neginf=0.0).abs().max())
    return LayerDifference(name, int(odd.sum()), int(odd.size), largest, largest / scale if scale else math.inf)


def distance_of(made: State, recorded: State) -> float:
    """0 if all bits are the same, else the largest relative difference of a layer."""
    return max((one.relative if one.of else math.inf for one in differences(made, recorded)), default=0.0)
