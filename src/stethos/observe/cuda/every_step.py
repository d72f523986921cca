"""Statistics of all gradients of one optimizer at every step: one launch over a table of addresses that is kept.

The table is made once; where gradients have moved only the addresses go to the device again. Results come by one
asynchronous copy into a ring of pinned memory and are read some steps later. Nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stethos.observe.cuda.fused import DTYPES, Fused, Kernels
from stethos.observe.device_row import ROWS, Rows, checksums_in, columns_of
from stethos.observe.statistic import STATISTICS, dense_of
from stethos.schema import NULL_F64

Ids = npt.NDArray[np.int32]
_SLOTS = 32  # steps that may be on their way
_TIMED, _FIRST_TIMED = 64, 8  # one step of so many is timed on the device; the first ones load the kernel
_SCALER = ("grad_scale", "found_inf")  # what a gradient scaler hands to an optimizer that scales gradients itself
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_stream_of: Callable[[int], int] = torch._C.__dict__.get("_cuda_getCurrentRawStream", lambda _: 0)


class _Group(NamedTuple):
    """The gradients of one type: their places among the parameters, and what launches the kernel over them.

    `first` is the place of its first one among all that are read.
    """

    places: npt.NDArray[np.intp]
    sizes: npt.NDArray[np.float64]
    first: int
    launch: Callable[[], torch.Tensor]


class _Slot(NamedTuple):
    """Pinned memory of one step on its way: addresses to the device, results and the scaler's numbers from it."""

    addresses: torch.Tensor
    results: torch.Tensor
    amp: torch.Tensor
    event: Any


class StepStatistics:
    """What the device tells of one step; `table` has the rows of `STATISTICS` after `read`, once it `is_there`.

    `checksums` are those of the gradients' bits, as whole numbers.

    `is_skipped`: a gradient scaler has left the step out, so that its gradients were applied to nothing.
    """

    __slots__ = ("_every", "_groups", "_has_scaler", "_slot", "_timed", "checksums", "is_skipped", "table")

    def __init__(self, every: EveryStep, slot: _Slot, groups: list[_Group], timed: Any, has_scaler: bool) -> None:
        self._every, self._slot, self._groups, self._timed = every, slot, groups, timed
        self._has_scaler = has_scaler
        self.is_skipped = False
        self.table: Rows = np.empty((len(STATISTICS), 0))
        self.checksums: Rows = np.empty(0)

    def is_there(self) -> bool:
        return bool(self._slot.event.query())

    def read(self) -> int:
        """Fill in `table`; return how many ns the device was busy with it, as far as is known from timed steps."""
        sizes = self._every.sizes
        scale = 1.0
        if self._has_scaler:
            given, skipped = self._slot.amp.tolist()
            self.is_skipped, scale = skipped > 0, given or 1.0
        self.table = np.full((len(STATISTICS), len(sizes)), NULL_F64)
        self.checksums = np.full(len(sizes), NULL_F64)
        for group in self._groups:
            rows = _part(self._slot.results, group.first, len(group.places)).numpy()
            self.checksums[group.places] = checksums_in(rows)
            if scale != 1.0:
                rows = rows[:8] / np.array([1.0, scale, scale * scale, scale, scale, 1.0, 1.0, 1.0])[:, None]
            self.table[:, group.places] = columns_of(rows, group.sizes)
        if self._timed is not None:
            self._every.device_ns = int(self._timed[0].elapsed_time(self._timed[1]) * 1e6)
        return self._every.device_ns


class EveryStep:
    """Launches for one list of parameters; `start` gives None where the ordinary way has to be taken."""

    def __init__(self, kernels: Kernels, params: list[torch.Tensor]) -> None:
        self._kernels = kernels
        self._fused: dict[torch.dtype, Fused] = {}
        self._params = params
        self.device = params[0].device
        self.sizes: list[int] = []
        self.device_ns = 0  # of one step, when it was last timed
        self._ids: tuple[Ids, Ids] | None = None
        self._key: list[Any] = []
        self._quick_key: list[Any] = []
        self._groups: list[_Group] = []
        self._slots: list[_Slot] = []
        self._next = 0

    @staticmethod
    def fits(params: list[torch.Tensor], kernels: Kernels) -> bool:
        """Whether all parameters are on one GPU, of types for which the kernel is there."""
        first = params[0]
        return all(
            param.is_cuda and param.device == first.device and param.dtype in DTYPES and kernels.of(param.dtype)
            for param in params
        )

    def start(self, optimizer: torch.optim.Optimizer | None) -> StepStatistics | None:
        """Queue the reduction of the gradients of this step behind the training's own work."""
        if torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):
                return self._start(optimizer)
        return self._start(optimizer)

    def _start(self, optimizer: torch.optim.Optimizer | None) -> StepStatistics | None:
        if torch.cuda.is_current_stream_capturing():
            return None
        if not self._slots:
            self._make()
        slot = self._slots[self._next % _SLOTS]
        if self._next >= _SLOTS and not slot.event.query():
            return None
        gradients = [param.grad for param in self._params]
        quick_key = self._quick_key_of(gradients)
        if quick_key and quick_key == self._quick_key:
            with torch.no_grad():
                return self._launch(slot, optimizer)
        key: list[Any] = [_stream_of(self.device.index)]
        for gradient in gradients:
            if gradient is None:
                key.append(None)
                continue
            whole: Any = gradient if type(gradient) in _PLAIN else getattr(gradient, "_local_tensor", None)
            if type(whole) not in _PLAIN or whole.layout is not torch.strided:
                return None
            key += (whole.data_ptr(), whole.nbytes, whole.stride())
        with torch.no_grad():
            if key != self._key and not self._prepare(gradients, slot):
                self._key = self._quick_key = []
                return None
            self._key, self._quick_key = key, quick_key
            return self._launch(slot, optimizer)

    def _quick_key_of(self, gradients: Sequence[torch.Tensor | None]) -> list[Any]:
        """Where plain gradients without gaps lie: as long as it is the same the launches are; empty for others."""
        try:
            if not all(type(one) is torch.Tensor and one.is_contiguous() for one in gradients if one is not None):
                return []
            places = [None if one is None else (one.data_ptr(), one.nbytes) for one in gradients]
        except RuntimeError:  # a sparse one has no memory of its own
            return []
        return [_stream_of(self.device.index), *places]

    def _launch(self, slot: _Slot, optimizer: torch.optim.Optimizer | None) -> StepStatistics:
        timed = None
        if self._next % _TIMED == _FIRST_TIMED:
            timed = _timing_event(), _timing_event()
            timed[0].record()
        for group in self._groups:
            _part(slot.results, group.first, len(group.places)).copy_(group.launch(), non_blocking=True)
        if timed is not None:
            timed[1].record()
        given = [getattr(optimizer, name, None) for name in _SCALER]
        has_scaler = any(isinstance(one, torch.Tensor) for one in given)
        if has_scaler:
            slot.amp.zero_()
            for place, one in enumerate(given):
                if isinstance(one, torch.Tensor):
                    slot.amp[place : place + 1].copy_(one.detach().reshape(1), non_blocking=True)
        slot.event.record()
        self._next += 1
        return StepStatistics(self, slot, self._groups, timed, has_scaler)

    def _prepare(self, gradients: Sequence[torch.Tensor | None], slot: _Slot) -> bool:
        """Make the launches for gradients that lie elsewhere than before; False if one cannot be read so."""
        by_type: dict[torch.dtype, list[tuple[int, torch.Tensor]]] = {}
        for place, given in enumerate(gradients):
            tensor = None if given is None else dense_of(given)
            if tensor is None or not tensor.numel():
                continue
            is_dense = tensor.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))
            if not is_dense or tensor.device != self.device or self._kernels.of(tensor.dtype) is None:
                return False
            by_type.setdefault(tensor.dtype, []).append((place, tensor))
        sizes = [0] * len(gradients)
        groups, at = [], 0
        for dtype, mine in by_type.items():
            tensors = [tensor for _, tensor in mine]
            fused = self._fused.setdefault(dtype, Fused(self._kernels))
            launch = fused.prepare(tensors, slot.addresses[at : at + len(mine)])
            if launch is None:
                return False
            places = np.array([place for place, _ in mine], np.intp)
            counts = np.array([tensor.numel() for tensor in tensors], np.float64)
            groups.append(_Group(places, counts, at, launch))
            for place, tensor in mine:
                sizes[place] = tensor.numel()
            at += len(mine)
        if sizes != self.sizes:
            self.sizes = sizes
        self._groups = groups
        return bool(groups)

    def ids(self, layers: list[int], kind: int) -> tuple[Ids, Ids]:
        """The numbers of the layers' names and of the kind, one of each for a row."""
        if self._ids is None:
            self._ids = np.array(layers, np.int32), np.full(len(layers), kind, np.int32)
        return self._ids

    def _make(self) -> None:
        count = len(self._params)
        addresses = torch.empty((_SLOTS, count), dtype=torch.int64, device="cpu", pin_memory=True)
        results = torch.empty((_SLOTS, ROWS * count), dtype=torch.float64, device="cpu", pin_memory=True)
        amp = torch.zeros((_SLOTS, 2), dtype=torch.float64, device="cpu", pin_memory=True)
        self._slots = [
            _Slot(*parts, torch.cuda.Event())  # type: ignore[no-untyped-call]
            for parts in zip(addresses, results, amp, strict=True)
        ]


def _part(results: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """The rows of one group, in one piece."""
    return results[ROWS * first : ROWS * (first + count)].view(ROWS, count)


def _timing_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
