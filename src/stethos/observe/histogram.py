"""Histograms of gradients and weights, taken with some of the samples of layers.

Of a big tensor some thousand elements, evenly spaced, stand for all. On a
GPU they are copied to the host behind the training's own work, and counted
there once they have come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from stethos.clock import monotonic_ns
from stethos.observe.statistic import array_of, dense_of
from stethos.schema import HISTOGRAMS, Kind

if TYPE_CHECKING:
    from stethos.observe.budget import SampleBudget
    from stethos.observe.late_row import HostLead
    from stethos.observe.optimizers import Watched

Ids = npt.NDArray[np.int32]
Rows = npt.NDArray[np.float64]
BUCKETS = len(HISTOGRAMS.of_kind(Kind.I64))
_MOST_ELEMENTS = 1024
_MOST_LAYERS = 512
_WIDTH = 4.0  # standard deviations to either side of the mean; what lies beyond counts in the outermost buckets
_CHUNK = 1 << 16  # elements that are counted at once: their float64 copies stay in the cache
_RARER = 6  # a step is looked at if the last one lies 1/2^6 of the training back: some 64 looks each time it triples
_NUMPY = (torch.float32, torch.float64)


class Elements:
    """Elements of gradients, then of weights, taken at one time; those of a GPU are on their way for a while."""

    def __init__(self, tensors: Sequence[torch.Tensor | None], layer_ids: Sequence[int]) -> None:
        self.clocked_ns = 0
        self.is_late = False
        self._layer_ids = list(layer_ids)
        self._layers = len(tensors) // 2
        self._places: list[int] = []
        self._sizes: list[int] = []
        self._parts: list[Rows | torch.Tensor] = []
        devices: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
        here: list[tuple[int, Rows]] = []
        with torch.no_grad():
            for place, given in enumerate(tensors):
                is_known = given is not None and (given.layout is torch.strided or given.is_cpu)
                tensor = dense_of(given) if given is not None and is_known else None
                if tensor is None or not tensor.numel():
                    continue
                if tensor.is_cpu and tensor.dtype in _NUMPY:
                    numbers = array_of(tensor).ravel(order="K")
                    here.append((place, numbers[:: _stride(len(numbers))]))
                else:
                    devices.setdefault(tensor.device, []).append((place, _spread(tensor)))
            if here:
                self._add(here, np.concatenate([part for _, part in here], dtype=np.float64))
            for device, group in devices.items():
                self.is_late = self.is_late or device.type == "cuda"
                self._add(group, _to_host(torch.cat([part.float() for _, part in group]), device))

    def _add(
        self, group: Sequence[tuple[int, npt.NDArray[np.float64] | torch.Tensor]], whole: Rows | torch.Tensor
    ) -> None:
        self._places += [place for place, _ in group]
        self._sizes += [len(part) for _, part in group]
        self._parts.append(whole)

    def counted(self) -> Rows:
        """Low end, high end and counts as rows, a column for each tensor that has elements; NaN if none is finite."""
        table = np.full((2 + BUCKETS, len(self._places)), np.nan)
        arrays = [part.double().numpy() if isinstance(part, torch.Tensor) else part for part in self._parts]
        numbers = np.concatenate(arrays) if arrays else np.empty(0)
        first = at = 0
        while first < len(self._sizes):
            last, end = first, at
            while last < len(self._sizes) and (last == first or end + self._sizes[last] - at <= _CHUNK):
                end += self._sizes[last]
                last += 1
            table[:, first:last] = _counted(numbers[at:end], np.array(self._sizes[first:last]))
            first, at = last, end
        return table

    def named(self) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """The layer of each column of `counted`, and whether it is a weight."""
        places = np.array(self._places, dtype=np.intp)
        return np.array(self._layer_ids, dtype=np.int32)[places % max(self._layers, 1)], places >= self._layers


def _stride(size: int) -> int:
    return max(size // _MOST_ELEMENTS, 1) | 1  # odd, so that it walks through the columns


def _spread(tensor: torch.Tensor) -> torch.Tensor:
    """Elements of a tensor, evenly spaced in the order of memory where that saves a copy."""
    if not tensor.is_contiguous() and torch.ops.aten.is_non_overlapping_and_dense(tensor):
        flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    else:
        flat = tensor.detach().reshape(-1)
    return flat[:: _stride(flat.numel())]


def _to_host(elements: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type != "cuda":
        return elements.cpu()
    with torch.cuda.device(device):
        host = torch.empty(elements.shape, dtype=elements.dtype, device="cpu", pin_memory=True)
        return host.copy_(elements, non_blocking=True)


def _counted(x: Rows, sizes: npt.NDArray[np.int64]) -> Rows:
    """Rows of `counted` for segments of these sizes; NaN where a segment has nothing finite."""
    table = np.full((2 + BUCKETS, len(sizes)), np.nan)
    known = np.arange(len(sizes))
    is_finite = np.isfinite(x)
    if not is_finite.all():
        sizes = np.add.reduceat(is_finite, sizes.cumsum() - sizes, dtype=np.int64)
        x, known, sizes = x[is_finite], known[sizes > 0], sizes[sizes > 0]
        if not len(known):
            return table
    starts = sizes.cumsum() - sizes
    with np.errstate(all="ignore"):
        mean = np.add.reduceat(x, starts) / sizes
        deviation = np.sqrt(np.add.reduceat(np.square(x - mean.repeat(sizes)), starts) / sizes)
        low = np.fmax(np.minimum.reduceat(x, starts), mean - _WIDTH * deviation)  # the edge where the other is NaN
        high = np.fmin(np.maximum.reduceat(x, starts), mean + _WIDTH * deviation)
        scale = np.where(high > low, BUCKETS / (high - low), 0.0)
        place = (x - low.repeat(sizes)) * scale.repeat(sizes)
        place = np.fmin(np.fmax(place, 0.0, out=place), BUCKETS - 1, out=place).astype(np.intp)
    place += (np.arange(len(sizes)) * BUCKETS).repeat(sizes)
    counts = np.bincount(place, minlength=BUCKETS * len(sizes)).reshape(-1, BUCKETS)
    table[:, known] = np.vstack([low, high, counts.T])
    return table


class HistogramSampler:
    """Says when a sample of layers takes histograms too, and pays for them out of a budget of their own."""

    def __init__(self, sample_budget: SampleBudget | None) -> None:
        self._sample_budget = sample_budget
        self._last: int | None = None
        self.clocked_ns = 0  # what they took so far
        self._spent_ns = 0

    def is_due(self, step: int, optimizers: int) -> bool:
        """Whether they can be afforded and the last ones are long ago; optimizers that take turns go together."""
        if self._sample_budget is None or not self._sample_budget.is_due(step, optimizers):
            return False
        if self._last is None or step - self._last > self._last >> _RARER:
            self._last = step
            return True
        return step - self._last < optimizers

    def take(self, watched: Watched) -> Elements:
        """The elements of an optimizer's gradients and weights, of the first layers."""
        start = monotonic_ns()
        params = watched.params[:_MOST_LAYERS]
        is_scaled = getattr(watched.optimizer(), "grad_scale", None) is not None  # by a scaler, until it has stepped
        elements = Elements([*[None if is_scaled else param.grad for param in params], *params], watched.layer_ids)
        elements.clocked_ns = monotonic_ns() - start
        self.clocked_ns += elements.clocked_ns
        return elements

    def count(self, elements: Elements, number_of: Callable[[str], int], lead: HostLead) -> tuple[Ids, Ids, Rows]:
        """Layers, kinds and numbers for rows of `histograms`; `number_of` gives a name's number."""
        start = monotonic_ns()
        table = elements.counted()
        known = ~np.isnan(table[0])
        layers, is_weight = elements.named()
        kinds = np.where(is_weight, number_of("weight"), number_of("gradient")).astype(np.int32)
        clocked_ns = monotonic_ns() - start
        self.clocked_ns += clocked_ns
        if self._sample_budget is not None:
            lost_ns = lead.lost_ns(elements.clocked_ns + clocked_ns)
            self._spent_ns += self._sample_budget.pay(lost_ns, is_cold=elements.is_late)
        return layers[known], kinds[known], table[:, known]

    def take_spent_ns(self) -> int:
        """What they cost, told once."""
        spent_ns, self._spent_ns = self._spent_ns, 0
        return spent_ns
