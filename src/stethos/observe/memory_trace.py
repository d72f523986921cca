"""Which operator allocates and frees tensor memory, during one sampled iteration.

A dispatch mode sees every operator's results; a weak reference to each new
storage tells when it is freed. The operators themselves run as they do
without it. It is on for a single iteration, and never beside another mode.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stethos.clock import monotonic_ns
from stethos.observe.program_line import ProgramLines

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_MOST_OPS = 100_000  # more than an iteration has: it is an evaluation, or no further step will come
_MOST_RESULTS = 64
Place = int | str | None  # the id of a module, or a word


@dataclass(slots=True)
class OpTotal:
    """What one operator did in one place."""

    calls: int = 0
    allocated_bytes: int = 0
    freed_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class NewStorage:
    """A storage that came to life in the iteration; `line` is where in the program."""

    storage: weakref.ref[torch.UntypedStorage]
    tensor: weakref.ref[torch.Tensor]
    key: int
    size_bytes: int
    device: str
    line: str


class MemoryTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Between `switch_on` and `switch_off` on one thread. `place` tells where the program is."""

    def __init__(self, guarded: Callable[[Any], Any], place: Callable[[], Place], lines: ProgramLines) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._noted = guarded(self._note)
        self._guarded = guarded
        self._place = place
        self._lines = lines
        self._is_on = False
        self._is_pushed = False
        self._op: tuple[Place, str] = (None, "")
        self.calls = 0
        self.own_ns = 0  # what looking at results took
        self.totals: dict[tuple[Place, str, str], OpTotal] = {}
        self.alive: dict[int, NewStorage] = {}
        self.now_bytes: dict[str, int] = {}
        self.peak_bytes: dict[str, int] = {}
        self.saved_bytes: dict[str, int] = {}  # alive when the backward began

    # On and off -------------------------------------------------------------------------------------

    def switch_on(self) -> None:
        torch._C._push_on_torch_dispatch_stack(self)
        self._is_on = self._is_pushed = True

    def switch_off(self) -> bool:
        """Take the mode away if nobody has put another one on it since; else it only passes on from here."""
        self._is_on = False
        depth = torch._C._len_torch_dispatch_stack()
        if not self._is_pushed or not depth:
            return True
        if torch._C._get_dispatch_stack_at(depth - 1) is not self:
            return False
        torch._C._pop_torch_dispatch_stack(None)
        self._is_pushed = False
        return True

    # Operators --------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, then look at what it made. On the training thread."""
        result = func(*args, **kwargs) if kwargs else func(*args)
        if self._is_on:
            start_ns = monotonic_ns()
            self._noted(func, args, kwargs, result)
            self.own_ns += monotonic_ns() - start_ns
        return result

    def backward_begins(self) -> None:
        """What is alive now is what the forward left for it."""
        if not self.saved_bytes:
            self.saved_bytes = dict(self.now_bytes)

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.calls += 1
        if self.calls > _MOST_OPS:
            self._is_on = False
            return
        self._op = (self._place(), _name_of(func))
        line = device = ""
        for tensor in _tensors(result):
            device = device or str(tensor.device)
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self.alive or any(key == other.untyped_storage()._cdata for other in _tensors((args, kwargs))):
                continue
            line = line or self._lines.of(sys._getframe(2))
            self._add(storage, tensor, key, line)
        if device:
            self._total(device).calls += 1

    def _add(self, storage: torch.UntypedStorage, tensor: torch.Tensor, key: int, line: str) -> None:
        size, device = storage.nbytes(), str(tensor.device)
        if not size:
            return

        def freed(_: object) -> None:
            self._free(key, size, device)

        self.alive[key] = NewStorage(
            weakref.ref(storage, self._guarded(freed)), weakref.ref(tensor), key, size, device, line
        )  # fmt: skip
        self._total(device).allocated_bytes += size
        now = self.now_bytes.get(device, 0) + size
        self.now_bytes[device] = now
        self.peak_bytes[device] = max(self.peak_bytes.get(device, 0), now)

    def _free(self, key: int, size: int, device: str) -> None:
        if self.alive.pop(key, None) is not None:
            self.now_bytes[device] -= size
            if self._is_on:
                self._total(device).freed_bytes += size

    def _total(self, device: str) -> OpTotal:
        key = (*self._op, device)
        total = self.totals.get(key)
        if total is None:
            total = self.totals[key] = OpTotal()
        return total


def drop_stale() -> None:
    """Take a trace that should be gone from the top of this thread's modes: it could not be when its time came."""
    while depth := torch._C._len_torch_dispatch_stack():
        if type(torch._C._get_dispatch_stack_at(depth - 1)) is not MemoryTrace:
            return
        torch._C._pop_torch_dispatch_stack(None)


def is_only_mode() -> bool:
    """Whether a trace of memory is this thread's only mode."""
    return torch._C._len_torch_dispatch_stack() == 1 and type(torch._C._get_dispatch_stack_at(0)) is MemoryTrace


def _name_of(func: Any) -> str:
    return str(func._schema.name).replace("::", ".")


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Plain strided tensors with memory of their own, in nested lists, tuples and dicts; the first few."""
    waiting, seen = [values], 0
    while waiting and seen < _MOST_RESULTS:
        value = waiting.pop()
        seen += 1
        if type(value) in _PLAIN:
            if value.layout is torch.strided and not value.is_meta:
                yield value
        elif isinstance(value, (tuple, list)):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
