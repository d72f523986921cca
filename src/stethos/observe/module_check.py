"""Looks at what recurrent and attention layers are given, in the forward passes between two inspected backwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stethos.observe.batch_print import print_of
from stethos.schema import NULL_F64

_SEQUENCES = (torch.nn.RNNBase, torch.nn.MultiheadAttention)
_LISTS = (torch.nn.ModuleList, torch.nn.Sequential)
_MOST_SEEN = 16
_MOST_RUN = 512
_MOST_DROPPED = 0.8
_CALLS_PER_LOOK = 20_000  # of modules; a service that goes on calling its model after training pays for no more


class ModuleCheck:
    """A hook on all modules for a few steps; notes the shapes that layers over sequences get."""

    def __init__(self, guard_run: Callable[..., Any]) -> None:
        self._run = guard_run
        self._handle: Any = None
        self._after: Any = None
        self._ends: dict[int, float] = {}  # by layer: a checksum of the state that it ended with
        self._carried = 0  # samples of a state that was given again
        self._seen: set[tuple[str, tuple[int, ...], bool]] = set()
        self._ran: set[int] = set()  # ids of layers that ran with gradients since the last inspected backward
        self._calls = 0  # of modules since the hooks came
        self.is_off = False  # compiled code must not meet our hooks

    def begin(self) -> None:
        self._calls = 0
        if self._handle is None and not self.is_off:
            self._handle = torch.nn.modules.module.register_module_forward_pre_hook(
                lambda module, inputs: self._run("calls", self._note, module, inputs)
            )
            self._after = torch.nn.modules.module.register_module_forward_hook(
                lambda module, _, outputs: (
                    self._run("calls", self._note_end, module, outputs)
                    if isinstance(module, torch.nn.RNNBase)
                    else None
                )
            )

    def end(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._after.remove()
            self._handle = None

    def _note(self, module: torch.nn.Module, inputs: Any) -> None:
        self._calls += 1
        if self._calls > _CALLS_PER_LOOK:
            self.end()
        if module._parameters and torch.is_grad_enabled() and len(self._ran) < _MOST_RUN:
            self._ran.add(id(module))
        if not isinstance(module, _SEQUENCES) or threading.get_ident() != threading.main_thread().ident:
            return
        given = inputs[0] if inputs else None
        if isinstance(module, torch.nn.RNNBase) and len(inputs) > 1 and torch.is_grad_enabled():
            state = _state_in(inputs[1])
            is_data = state is not None and state.grad_fn is None and not state.requires_grad
            if is_data and _print_of(state) == self._ends.get(id(module), NULL_F64):
                self._carried = int(state.shape[-2]) if state is not None and state.dim() > 1 else 0
        if isinstance(given, torch.Tensor) and given.dim() == 3 and len(self._seen) < _MOST_SEEN:
            self._seen.add((type(module).__name__, tuple(given.shape), bool(module.batch_first)))

    def _note_end(self, module: torch.nn.Module, outputs: Any) -> None:
        """A recurrent layer has run: note the state that it ended with."""
        if (
            isinstance(outputs, tuple)
            and len(outputs) == 2
            and torch.is_grad_enabled()
            and len(self._ends) < _MOST_SEEN
        ):
            self._ends[id(module)] = _print_of(_state_in(outputs[1]))

    def take_carried(self) -> int:
        """Of how many samples a recurrent layer was given, as data, the state that it had ended its last run with."""
        was, self._carried = self._carried, 0
        return was

    def ran_in_vain(self, roots: list[torch.nn.Module], cut: set[int]) -> list[str]:
        """Layers that ran, and whose parameters, of which these are the ids, the loss does not reach."""
        return [
            name
            for root in roots
            for name, module in root.named_modules()
            if id(module) in self._ran and any(id(one) in cut for one in module._parameters.values())
        ]

    def remarks_of(self, batch: int, least: int, length: int) -> Iterator[tuple[str, str]]:
        """Layers that take the samples of a batch for the steps of a sequence, with so many samples at least.

        A single sequence whose steps have a label each looks like that, too, unless its loader tells the batch; so do
        sequences that come with their steps first: the second size of the labels, `length`, is then their number.
        """
        for name, shape, is_first in sorted(self._seen):
            steps, samples = (shape[1], shape[0]) if is_first else (shape[0], shape[1])
            if batch > 1 and steps == batch != samples and samples >= least and samples != length:
                said = f"`{name}(batch_first={is_first})` is given {shape}"
                yield "samples-as-sequence", f"{said}: it takes the {batch} samples of a batch for a sequence"
        self._seen.clear()
        self._ran.clear()


def _state_in(state: Any) -> torch.Tensor | None:
    first = state[0] if isinstance(state, tuple) and state else state
    return first if isinstance(first, torch.Tensor) else None


def _print_of(state: torch.Tensor | None) -> float:
    taken = print_of(state)
    return taken.hash if taken.zero_share < 1 else NULL_F64


def strong_dropouts(roots: list[torch.nn.Module]) -> Iterator[tuple[str, str]]:
    """Dropouts that leave next to nothing, as where the share to keep is given for the share to drop."""
    for root in roots:
        for name, module in root.named_modules():
            if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p >= _MOST_DROPPED:
                yield "dropout-too-strong", f"{name or type(module).__name__} drops {module.p:.0%} of what it is given"
                return


def repeated_layers(roots: list[torch.nn.Module]) -> Iterator[tuple[str, str]]:
    """Lists that hold nothing but the same layer, again and again."""
    for root in roots:
        for name, module in root.named_modules():
            entries = list(module._modules.values()) if isinstance(module, _LISTS) else []
            is_one = len(entries) > 1 and all(entry is entries[0] for entry in entries)
            if is_one and entries[0] is not None and any(True for _ in entries[0].parameters()):
                said = f"all {len(entries)} entries of {name or 'the model'} are one {type(entries[0]).__name__}"
                yield "same-layer-again", said
