"""A model's state as one vector, and back: what clients send and servers average."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """One floating-point tensor of the state and its place in the vector."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    start: int
    end: int
    is_parameter: bool


@dataclass(frozen=True, slots=True)
class FlatState:
    """All floating-point tensors in one vector; counters, such as those of BatchNorm, beside it."""

    vector: Tensor
    counters: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which part of the vector is which tensor."""

    entries: tuple[LayoutEntry, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        entries, start = [], 0
        parameters = {name for name, _ in model.named_parameters()}
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                end = start + math.prod(tensor.shape)
                entries.append(LayoutEntry(name, tensor.shape, tensor.dtype, start, end, name in parameters))
                start = end
        is_double = any(entry.dtype == torch.float64 for entry in entries)
        return cls(tuple(entries), torch.float64 if is_double else torch.float32)

    @property
    def size(self) -> int:
        return self.entries[-1].end if self.entries else 0

    @property
    def parameters(self) -> Tensor:
        """Which elements of the vector are trained, as opposed to buffers."""
        mask = torch.zeros(self.size, dtype=torch.bool)
        for entry in self.entries:
            mask[entry.start : entry.end] = entry.is_parameter
        return mask

    def bytes_of(self, counters: dict[str, Tensor]) -> int:
        """Size of the state as it is sent."""
        floats = sum((entry.end - entry.start) * entry.dtype.itemsize for entry in self.entries)
        return floats + sum(counter.nbytes for counter in counters.values())

    def read(self, model: nn.Module) -> FlatState:
        """A copy of the model's state."""
        state = model.state_dict()
        parts = [state[entry.name].reshape(-1).to(self.dtype) for entry in self.entries]
        counters = {name: tensor.clone() for name, tensor in state.items() if not tensor.is_floating_point()}
        return FlatState(torch.cat(parts) if parts else torch.empty(0), counters)

    def write(self, state: FlatState, model: nn.Module) -> None:
        """Set the model's state, in place."""
        own = model.state_dict()
        with torch.no_grad():
            for entry in self.entries:
                own[entry.name].copy_(state.vector[entry.start : entry.end].view(entry.shape))
            for name, counter in state.counters.items():
                own[name].copy_(counter)

    def as_dict(self, state: FlatState) -> dict[str, Tensor]:
        """The state as an ordinary state dict; tensors share the vector's memory where their type allows it."""
        tensors = {
            entry.name: state.vector[entry.start : entry.end].view(entry.shape).to(entry.dtype)
            for entry in self.entries
        }
        return {**tensors, **state.counters}

    def from_dict(self, named: Mapping[str, Tensor]) -> FlatState:
        """What `as_dict` made a state dict of."""
        parts = [named[entry.name].reshape(-1).to(self.dtype) for entry in self.entries]
        names = {entry.name for entry in self.entries}
        counters = {name: tensor for name, tensor in named.items() if name not in names}
        return FlatState(torch.cat(parts) if parts else torch.empty(0), counters)
