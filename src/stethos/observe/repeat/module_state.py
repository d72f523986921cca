"""What a forward pass may change in a module and the modules inside it, and the way back to it.

Attributes, the contents of lists, dicts, sets and deques among them, buffers and other tensors, generators. Objects of
the program's own classes are shared, not copied: what a forward pass changes inside of them stays changed.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import torch

from stethos.observe.repeat.random_state import Restore, generator_state

_MOST_BYTES = 1 << 30
_MOST_VALUES = 100_000
_DEPTH = 4
_OF_TORCH = frozenset(name for name, value in vars(torch.nn.Module()).items() if isinstance(value, dict))
_HELD = ("_parameters", "_buffers", "_modules")
_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict)
Swap = dict[int, torch.Tensor]  # by the id of a tensor, the one that takes its place


class CannotRepeatError(Exception):
    """Why a pass is not repeated, in words."""


class ModuleState:
    """The state of a module when this is made.

    With `copies` the values of its tensors are kept as well, so that a pass can begin from them once more.
    """

    def __init__(self, module: torch.nn.Module, *, copies: bool) -> None:
        self._attributes = [(one, dict(vars(one))) for one in module.modules()]
        self._contents: list[tuple[Any, Any]] = []  # a container, and what is in it
        self._generators: list[Restore] = []
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []  # with their copies
        self._seen: set[int] = set()
        self._left_bytes = _MOST_BYTES if copies else 0
        self._copies = copies
        for one, attributes in self._attributes:
            for name in _HELD:
                self._note(vars(one).get(name), _DEPTH)
            for name, value in attributes.items():
                if name not in _OF_TORCH:
                    self._note(value, 0)

    def _note(self, value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            self._note_tensor(value)
        elif type(value) in _CONTAINERS and id(value) not in self._seen:
            self._seen.add(id(value))
            if len(self._seen) > _MOST_VALUES:
                raise CannotRepeatError("its modules hold too many values")
            self._contents.append((value, value.copy()))
            if depth <= _DEPTH:
                for inner in value.values() if isinstance(value, dict) else value:
                    self._note(inner, depth + 1)
        elif type(value) is tuple and depth < _DEPTH:
            for inner in value:
                self._note(inner, depth + 1)
        elif (restore := generator_state(value)) is not None:
            self._generators.append(restore)

    def _note_tensor(self, tensor: torch.Tensor) -> None:
        is_trained = tensor.requires_grad or isinstance(tensor, torch.nn.Parameter)
        if not self._copies or is_trained or id(tensor) in self._seen:
            return
        self._seen.add(id(tensor))
        self._left_bytes -= tensor.nbytes
        if self._left_bytes < 0:
            raise CannotRepeatError(f"its buffers take more than {_MOST_BYTES >> 20} MiB")
        self._tensors.append((tensor, tensor.detach().clone()))

    def fresh_copies(self) -> Swap:
        """For each tensor but the parameters a new one with the values of then."""
        return {id(tensor): copy.clone() for tensor, copy in self._tensors}

    def restore(self, swap: Swap | None = None) -> None:
        """Put everything back as it was; with `swap` other tensors take the places of those they stand for."""
        swap = swap or {}
        for container, content in self._contents:
            _refill(container, content, swap)
        for module, attributes in self._attributes:
            now = vars(module)
            for name in [name for name in now if name not in attributes]:
                del now[name]
            for name, value in attributes.items():
                now[name] = value if name in _OF_TORCH else _swapped(value, swap)
        for restore in self._generators:
            restore()


def _refill(container: Any, content: Any, swap: Swap) -> None:
    if isinstance(container, dict):
        filled: Any = {key: _swapped(value, swap) for key, value in content.items()}
    else:
        filled = [_swapped(value, swap) for value in content]
    container.clear()
    container.update(filled) if isinstance(container, dict | set) else container.extend(filled)


def _swapped(value: Any, swap: Swap, depth: int = 0) -> Any:
    if isinstance(value, torch.Tensor):
        return swap.get(id(value), value)
    if type(value) is tuple and depth < _DEPTH:
        parts = tuple(_swapped(part, swap, depth + 1) for part in value)
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
    return value


def tensors_in(values: object, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, in order; those of a data class that is a dict as well."""
    if isinstance(values, torch.Tensor):
        yield values
    elif depth < 2 * _DEPTH and isinstance(values, dict):
        for value in values.values():
            yield from tensors_in(value, depth + 1)
    elif depth < 2 * _DEPTH and isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value, depth + 1)


def with_tensors(values: Any, swap: Swap) -> Any:
    """Nested tuples, lists and dicts with other tensors in the places of some."""
    if isinstance(values, torch.Tensor):
        return swap.get(id(values), values)
    if type(values) is dict:
        return {key: with_tensors(value, swap) for key, value in values.items()}
    if type(values) in (list, tuple):
        return type(values)(with_tensors(value, swap) for value in values)
    return values
