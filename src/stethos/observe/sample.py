"""Takes the statistics of all layers of one optimizer and puts them into the ring as one vector."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from stethos.observe.budget import SampleBudget
from stethos.observe.context import turn
from stethos.observe.cuda.every_step import EveryStep, StepStatistics
from stethos.observe.device_statistic import DeviceStatistics, LateTable
from stethos.observe.histogram import Elements, HistogramSampler
from stethos.observe.late_row import LAST_WAIT_S, HostLead, alone
from stethos.observe.session import Session
from stethos.observe.statistic import STATISTICS, statistics_of
from stethos.schema import HISTOGRAMS, LAYERS, NULL_F64, NULL_F64_BITS, NULL_I32, NULL_I64, Kind

if TYPE_CHECKING:
    from stethos.observe.optimizers import Watched

SMALL_MODEL_BYTES = 16 << 20
_ROWS_PER_FRAME = 4096
_COMPILER_WAIT_S = 10.0
_clone_all = getattr(torch, "_foreach_clone", None)
_NUMBERS = [column.name for column in LAYERS.of_kind(Kind.I32, Kind.I64, Kind.F64, Kind.BOOL)]
assert [*STATISTICS, "drift", "size", "checksum"] == _NUMBERS
_DRIFT, _SIZE, _CHECKSUM = range(len(STATISTICS), len(_NUMBERS))


class LateSample:
    """Statistics of gradients and what is to be done with them when they are all here."""

    __slots__ = ("_finished", "_grad_norm", "_gradients", "_late", "_lead", "_sample_budget", "_spent_ns")

    def __init__(
        self, late: LateTable | StepStatistics, gradients: int, sample_budget: SampleBudget, lead: HostLead,
        finished: Callable[[float], None] | None,
    ) -> None:  # fmt: skip
        self._late = late
        self._gradients = gradients
        self._sample_budget = sample_budget
        self._lead = lead
        self._finished = finished  # given the norm
        self._grad_norm: float | None = None
        self._spent_ns = 0

    def is_there(self) -> bool:
        return self._grad_norm is not None or self._late.is_there()

    def grad_norm(self) -> float:
        """The norm of all gradients. Read once it `is_there`."""
        if self._grad_norm is None:
            self._finish()
        return NULL_F64 if self._grad_norm is None else self._grad_norm

    def take_spent_ns(self) -> int:
        """What the device spent on it, told once."""
        spent_ns, self._spent_ns = self._spent_ns, 0
        return spent_ns

    def _finish(self) -> None:
        """Read the statistics, write the rows, and pay for the time of the device."""
        self._spent_ns = self._sample_budget.pay_more(self._lead.lost_on_device_ns(self._late.read()))
        self._grad_norm = NULL_F64
        if not getattr(self._late, "is_skipped", False):
            self._grad_norm = _total_norm(self._late.table[:, : self._gradients])
            if self._finished is not None:
                self._finished(self._grad_norm)


class LayerSampler:
    """Gradient and weight statistics; `spent_ns` is what samples cost since it was last set to 0."""

    def __init__(self, session: Session, histogram_budget: SampleBudget | None = None) -> None:
        self._session = session
        self.histograms = HistogramSampler(histogram_budget)
        self._device = DeviceStatistics(session.guard.run)
        self.lead = HostLead()
        self._waiting: deque[LateSample] = deque()
        self._flushing = threading.Lock()
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

    def take_gradients(
        self, watched: Watched, step: int, sample_budget: SampleBudget, looked: Callable[[Watched, float], None]
    ) -> LateSample | None:
        """Record the gradients of a model on a GPU, in one launch; None where that is not possible now.

        `looked` is called with the norm when they have come.
        """
        every = watched.every_step
        if every is None:
            if not self._device.is_free(watched.params) or not EveryStep.fits(watched.params, self._device.kernels):
                return None
            every = watched.every_step = EveryStep(self._device.kernels, watched.params)
        found = every.start(watched.optimizer())
        if found is None:
            return None
        whose, t_ns, number = turn()[:2], self._session.now_ns(), watched.number
        layers, kinds = every.ids(watched.layer_ids, self._kind("gradient"))
        sizes = every.sizes

        def finished(grad_norm: float) -> None:
            numbers = np.full((len(_NUMBERS), len(sizes)), NULL_F64)
            numbers[: len(STATISTICS)] = found.table
            numbers[_SIZE], numbers[_CHECKSUM] = sizes, found.checksums
            self.put(layers, kinds, numbers, number, step, whose=whose, t_ns=t_ns)
            looked(watched, grad_norm)

        return self._begun(LateSample(found, len(sizes), sample_budget, self.lead, finished))

    def take(
        self, watched: Watched, step: int, sample_budget: SampleBudget, *, has_gradients: bool = False,
        has_histograms: bool = False,
    ) -> LateSample | None:  # fmt: skip
        """Record gradients and weights: now if they are in CPU memory, else when the device has them.

        None if the device is not to be asked now. `has_gradients`: those of this step are on their way already.
        """
        params = watched.params
        count = len(params)
        gradients = [None if has_gradients else param.grad for param in params]
        if not self._device.is_free(params):
            return None
        guarded = self._session.guard.run
        # before the event that tells of both
        elements = guarded("histograms", self.histograms.take, watched) if has_histograms else None
        starts = None if watched.start is None else [*[None] * count, *watched.start]
        late = self._device.start([*gradients, *params], starts)
        whose, t_ns = turn()[:2], self._session.now_ns()

        def finished(_: float) -> None:
            numbers = np.full((len(_NUMBERS), 2 * count), NULL_F64)
            numbers[: len(STATISTICS)] = late.table
            numbers[_DRIFT], numbers[_SIZE], numbers[_CHECKSUM] = late.drift, sizes, late.checksums
            own = slice(count if has_gradients else 0, None)
            self.put(layers[own], kinds[own], numbers[:, own], number, step, whose=whose, t_ns=t_ns)
            if elements is not None:
                guarded("histograms", put_histograms, elements)

        def put_histograms(elements: Elements) -> None:
            layers, kinds, table = self.histograms.count(elements, self._kind, self.lead)
            self.put(layers, kinds, table, number, step, whose=whose, t_ns=t_ns, table=HISTOGRAMS.number)
            self.spent_ns += self.histograms.take_spent_ns()

        sizes = [param.numel() for param in params] * 2
        layers = np.array(watched.layer_ids * 2, dtype=np.int32)
        kinds = np.repeat(np.array([self._kind("gradient"), self._kind("weight")], dtype=np.int32), count)
        number = watched.number
        return self._begun(LateSample(late, count, sample_budget, self.lead, finished))

    def start_norm(self, gradients: list[torch.Tensor | None], sample_budget: SampleBudget) -> LateSample | None:
        """The norm of gradients on a device, when it is there."""
        if not self._device.is_free(gradients):
            return None
        late = self._device.start(gradients)
        return self._begun(LateSample(late, len(gradients), sample_budget, self.lead, None))

    def _begun(self, sample: LateSample) -> LateSample:
        self._waiting.append(sample)
        self.flush()
        return sample

    def flush(self) -> None:
        """Record the samples that have come; where another thread is at it, leave it to that one."""
        with alone(self._flushing) as is_alone:
            while is_alone and self._waiting and self._waiting[0].is_there():
                sample = self._waiting.popleft()
                sample.grad_norm()
                self.spent_ns += sample.take_spent_ns()

    def finish(self) -> None:
        """Recording ends: wait a moment for what is still on its way."""
        deadline = time.monotonic() + LAST_WAIT_S
        while self._waiting and time.monotonic() < deadline:
            self.flush()
            time.sleep(0.001)
        self._waiting.clear()
        self._device.kernels.wait(_COMPILER_WAIT_S)

    def put(
        self, layers: np.ndarray[tuple[int], np.dtype[np.int32]], kinds: np.ndarray[tuple[int], np.dtype[np.int32]],
        numbers: np.ndarray[tuple[int, int], np.dtype[np.float64]], optimizer: int, step: int, *,
        whose: tuple[int, int] | None = None, t_ns: int | None = None, table: int = LAYERS.number,
    ) -> None:  # fmt: skip
        """Rows of `layers` or `histograms` as whole vectors, in frames of bounded size."""
        for first in range(0, len(layers), _ROWS_PER_FRAME):
            part = slice(first, first + _ROWS_PER_FRAME)
            self._session.put_frame(
                table,
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
    numbers[_SIZE] = [weight.numel() for weight in weights]
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
