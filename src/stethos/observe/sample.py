"""Takes the statistics of all layers of one optimizer and puts them into the ring as one vector."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from stethos.observe.budget import Purse
from stethos.observe.context import turn
from stethos.observe.device_statistic import DeviceStatistics, LateTable
from stethos.observe.late_row import LAST_WAIT_S
from stethos.observe.session import Session
from stethos.observe.statistic import STATISTICS, statistics_of
from stethos.schema import LAYERS, NULL_F64, NULL_F64_BITS, NULL_I32, NULL_I64, Kind

if TYPE_CHECKING:
    from stethos.observe.stepwatch import Watched

SMALL_MODEL_BYTES = 16 << 20
_ROWS_PER_FRAME = 4096
_clone_all = getattr(torch, "_foreach_clone", None)
_NUMBERS = [column.name for column in LAYERS.of_kind(Kind.I32, Kind.I64, Kind.F64, Kind.BOOL)]
assert [*STATISTICS, "drift", "size"] == _NUMBERS


class LateSample:
    """Statistics of gradients and what is to be done with them when they are all here."""

    __slots__ = ("_gradients", "_late", "_norm", "_purse", "_spent_ns", "_write")

    def __init__(self, late: LateTable, gradients: int, purse: Purse, write: Callable[[], None] | None) -> None:
        self._late = late
        self._gradients = gradients
        self._purse = purse
        self._write = write
        self._norm: float | None = None
        self._spent_ns = 0

    def is_there(self) -> bool:
        return self._norm is not None or self._late.is_there()

    def norm(self) -> float:
        """The norm of all gradients. Read once it `is_there`."""
        if self._norm is None:
            self._finish()
        return NULL_F64 if self._norm is None else self._norm

    def take_spent_ns(self) -> int:
        """What the device spent on it, told once."""
        spent_ns, self._spent_ns = self._spent_ns, 0
        return spent_ns

    def _finish(self) -> None:
        self._spent_ns = self._purse.pay_more(self._late.read())
        self._norm = _total_norm(self._late.table[:, : self._gradients])
        if self._write is not None:
            self._write()


class LayerSampler:
    """Gradient and weight statistics; `spent_ns` is what samples cost since it was last set to 0."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._device = DeviceStatistics(session.guard.run)
        self._waiting: deque[LateSample] = deque()
        self.spent_ns = 0

    def copy_of_start(self, params: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """The weights to measure drift from: of small models always, of others in the deep preset."""
        preset = self._session.settings.preset
        size = sum(param.numel() * param.element_size() for param in params)
        if preset == "light" or (preset == "standard" and size > SMALL_MODEL_BYTES):
            return None
        if not torch._C._len_torch_dispatch_stack():
            return _copies(params)
        with _disable_current_modes():
            return _copies(params)

    def take(self, watched: Watched, step: int, purse: Purse) -> LateSample | None:
        """Record gradients and weights: now if they are in CPU memory, else when the device has them.

        None if the device is not to be asked now.
        """
        params = watched.params
        count = len(params)
        gradients = [param.grad for param in params]
        if not self._device.is_free(params):
            return None
        starts = None if watched.start is None else [*[None] * count, *watched.start]
        late = self._device.start([*gradients, *params], starts)
        whose, t_ns = turn()[:2], self._session.now_ns()

        def write() -> None:
            numbers = np.full((len(_NUMBERS), 2 * count), NULL_F64)
            numbers[: len(STATISTICS)] = late.table
            numbers[-2] = late.drift
            numbers[-1] = sizes
            self.put(layers, kinds, numbers, number, step, whose=whose, t_ns=t_ns)

        sizes = [param.numel() for param in params] * 2
        layers = np.array(watched.layer_ids * 2, dtype=np.int32)
        kinds = np.repeat(np.array([self._kind("gradient"), self._kind("weight")], dtype=np.int32), count)
        number = watched.number
        return self._begun(LateSample(late, count, purse, write))

    def start_norm(self, gradients: list[torch.Tensor | None], purse: Purse) -> LateSample | None:
        """The norm of gradients on a device, when it is there."""
        if not self._device.is_free(gradients):
            return None
        return self._begun(LateSample(self._device.start(gradients), len(gradients), purse, None))

    def _begun(self, sample: LateSample) -> LateSample:
        self._waiting.append(sample)
        self.flush()
        return sample

    def flush(self) -> None:
        """Record the samples that have come."""
        while self._waiting and self._waiting[0].is_there():
            sample = self._waiting.popleft()
            sample.norm()
            self.spent_ns += sample.take_spent_ns()

    def finish(self) -> None:
        """Recording ends: wait a moment for what is still on its way."""
        deadline = time.monotonic() + LAST_WAIT_S
        while self._waiting and time.monotonic() < deadline:
            self.flush()
            time.sleep(0.001)
        self._waiting.clear()

    def put(
        self, layers: np.ndarray[tuple[int], np.dtype[np.int32]], kinds: np.ndarray[tuple[int], np.dtype[np.int32]],
        numbers: np.ndarray[tuple[int, int], np.dtype[np.float64]], optimizer: int, step: int, *,
        whose: tuple[int, int] | None = None, t_ns: int | None = None,
    ) -> None:  # fmt: skip
        """Rows of `layers` as whole vectors, in frames of bounded size."""
        for first in range(0, len(layers), _ROWS_PER_FRAME):
            part = slice(first, first + _ROWS_PER_FRAME)
            self._session.put_frame(
                LAYERS.number,
                layers[part].tobytes() + kinds[part].tobytes(),
                np.ascontiguousarray(numbers[:, part]).data.cast("B"),
                rows=len(layers[part]),
                optimizer=optimizer,
                step=step,
                whose=whose,
                t_ns=t_ns,
            )

    def _kind(self, name: str) -> int:
        return self._session.name_id(name)


def put_weights(session: Session, named: Mapping[str, torch.Tensor]) -> None:
    """Rows of `layers` for weights that no optimizer has stepped yet, as of a global model."""
    weights = list(named.values())
    numbers = np.full((len(_NUMBERS), len(weights)), NULL_F64)
    numbers[: len(STATISTICS)] = statistics_of(weights)
    numbers[-1] = [weight.numel() for weight in weights]
    ids = np.array([session.name_id(name) for name in named], dtype=np.int32)
    LayerSampler(session).put(ids, np.full(len(ids), session.name_id("weight"), np.int32), numbers, NULL_I32, 0)


def _copies(params: list[torch.Tensor]) -> list[torch.Tensor]:
    if params and _clone_all is not None and all(type(param) is torch.nn.Parameter for param in params):
        with torch.no_grad():
            return list(_clone_all(params))  # one call, where each is several microseconds
    return [param.detach().clone() for param in params]


def _total_norm(gradients: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """The norm over all layers; NaN or infinite if any element is, NULL without gradients."""
    norms, nan, inf = gradients[0], gradients[-2], gradients[-1]
    known = gradients[-1].view(np.int64) != NULL_F64_BITS
    if not known.any():
        return NULL_F64
    if nan[known].sum() > 0:
        return math.nan
    if inf[known].sum() > 0:
        return math.inf
    return float(np.sqrt(np.square(norms[known]).sum()))


def tensor_bytes_of(optimizer: torch.optim.Optimizer, params: list[torch.Tensor]) -> int:
    """Tensor memory: on CUDA what the allocator holds, else parameters, gradients and optimizer state."""
    if params and params[0].is_cuda:
        return int(torch.cuda.memory_allocated(params[0].device))
    total = sum(_bytes_of(param) + _bytes_of(param.grad) for param in params)
    for state in optimizer.state.values():
        if isinstance(state, dict):
            total += sum(map(_bytes_of, state.values()))
    return total


def cuda_peak_of(params: list[torch.Tensor]) -> int:
    """The largest tensor memory that CUDA's allocator has held so far; NULL for parameters in CPU memory."""
    return int(torch.cuda.max_memory_allocated(params[0].device)) if params and params[0].is_cuda else NULL_I64


def _bytes_of(value: object) -> int:
    """A tensor's elements in bytes, of a sparse one those that are stored."""
    if not isinstance(value, torch.Tensor):
        return 0
    if value.layout is torch.strided:
        return value.nbytes
    return value._nnz() * math.prod(value.shape[value.sparse_dim() :]) * value.element_size() if value.is_sparse else 0
