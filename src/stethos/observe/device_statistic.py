"""Statistics of CUDA tensors, computed there and read here some steps later.

All tensors of one type go through one fused kernel (`observe.cuda`); those it
does not take, and all while it is being compiled or where Triton is missing,
through operations of torch. Nothing waits for the device: the numbers go into
pinned memory behind the training's own work, and an event tells when they
have come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stethos.observe.cuda.fused import DTYPES, Fused, Kernels
from stethos.observe.device_row import Rows, checksums_in, columns_of, distances_of, joined, rows_of
from stethos.observe.statistic import STATISTICS, dense_of, drift_of, statistics_of
from stethos.schema import NULL_F64

_MOST_PENDING = 8
_LEAST_FUSED = 4096  # elements in all; below it nothing is gained


class LateTable:
    """Statistics of a list of tensors, some of them on their way; `read` when `is_there`.

    `table` is as `statistics_of` gives it. `drift` holds the distances of those
    tensors that were given a start, `checksums` those of the bits of tensors on a device.
    """

    __slots__ = ("_arrivals", "_began", "_ended", "_keep", "checksums", "drift", "table")

    def __init__(self, count: int) -> None:
        self.table: Rows = np.full((len(STATISTICS), count), NULL_F64)
        self.drift: Rows = np.full(count, NULL_F64)
        self.checksums: Rows = np.full(count, NULL_F64)
        self._arrivals: list[Callable[[], None]] = []
        self._keep: list[torch.Tensor] = []
        self._began: list[Any] = []
        self._ended: list[Any] = []

    @property
    def is_late(self) -> bool:
        """Whether anything had to be asked of a device."""
        return bool(self._ended)

    def is_there(self) -> bool:
        return all(event.query() for event in self._ended)

    def read(self) -> int:
        """Fill in what has come; return how many ns the devices were busy with it."""
        for arrive in self._arrivals:
            arrive()
        busy_ms = sum(began.elapsed_time(ended) for began, ended in zip(self._began, self._ended, strict=True))
        self._arrivals, self._keep, self._began, self._ended = [], [], [], []
        return int(busy_ms * 1e6)

    def begin(self) -> None:
        self._began.append(_recorded_event())

    def end(self) -> None:
        self._ended.append(_recorded_event())

    def expect_rows(self, places: list[int], sizes: list[int], rows: torch.Tensor, blocks: list[int]) -> None:
        host = _to_host(rows)

        def arrive() -> None:
            whole = joined(host.numpy(), blocks)
            self.table[:, places] = columns_of(whole, sizes)
            self.checksums[places] = checksums_in(whole)

        self._arrivals.append(arrive)

    def expect_drift(self, places: list[int], distances: torch.Tensor) -> None:
        host = _to_host(distances)

        def arrive() -> None:
            self.drift[places] = host.numpy()

        self._arrivals.append(arrive)

    def hold(self, tensor: torch.Tensor) -> None:
        """Keep pinned memory from being used again before the device has read it."""
        self._keep.append(tensor)


class DeviceStatistics:
    """Starts statistics of lists of tensors; what is in CPU memory is read at once.

    `run` is a guard's: the compilation of the kernel runs under it, in a thread.
    """

    def __init__(self, run: Callable[..., object]) -> None:
        self.kernels = Kernels(run)
        self._fused = Fused(self.kernels)
        self._out: list[LateTable] = []

    def is_free(self, tensors: Sequence[torch.Tensor | None]) -> bool:
        """Whether a sample can be started on a GPU.

        Not while a graph is captured, while many samples are still on their way, or while the kernel is being
        compiled, which takes a second or two: without it a sample costs a hundred times as much.
        """
        dtypes = {tensor.dtype for tensor in tensors if tensor is not None and tensor.is_cuda}
        if not dtypes:
            return True
        if torch.cuda.is_current_stream_capturing() or any(map(self.kernels.is_coming, dtypes)):
            return False
        self._out = [late for late in self._out if late.is_late]
        return len(self._out) < _MOST_PENDING

    def start(
        self, tensors: Sequence[torch.Tensor | None], starts: Sequence[torch.Tensor | None] | None = None
    ) -> LateTable:
        """Statistics of tensors, and how far each is from its start if it has one.

        Sparse tensors on a GPU are left out: reading one would wait for it.
        """
        late = LateTable(len(tensors))
        here: list[int] = []
        devices: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
        with torch.no_grad():
            for place, given in enumerate(tensors):
                if given is None:
                    continue
                if not given.is_cuda:
                    here.append(place)
                elif given.layout is torch.strided and (tensor := dense_of(given)) is not None and tensor.numel():
                    devices.setdefault(tensor.device, []).append((place, tensor))
            if here:
                late.table[:, here] = statistics_of([tensors[place] for place in here])
                near = [place for place in here if starts is not None and starts[place] is not None]
                if near and starts is not None:
                    late.drift[near] = drift_of([tensors[place] for place in near], [starts[place] for place in near])  # type: ignore[misc]
            for device, group in devices.items():
                with torch.cuda.device(device):
                    self._start(late, group, starts)
        if late.is_late:
            self._out.append(late)
        return late

    def _start(
        self, late: LateTable, group: list[tuple[int, torch.Tensor]], starts: Sequence[torch.Tensor | None] | None
    ) -> None:
        """Queue the tensors of one device, type by type: the kernel takes those that fill their memory."""
        late.begin()
        for dtype in dict.fromkeys(tensor.dtype for _, tensor in group):
            mine = [pair for pair in group if pair[1].dtype is dtype]
            fit = [pair for pair in mine if dtype in DTYPES and _fills_memory(pair[1])]
            if sum(tensor.numel() for _, tensor in fit) >= _LEAST_FUSED:
                addresses = torch.empty(len(fit), dtype=torch.int64, device="cpu", pin_memory=True)
                rows = self._fused.reduce([tensor for _, tensor in fit], addresses)
                if rows is not None:
                    late.hold(addresses)
                    late.expect_rows(*_places(fit), rows, [1] * len(fit))
                    taken = {place for place, _ in fit}
                    mine = [pair for pair in mine if pair[0] not in taken]
            if mine:
                rows, blocks = rows_of([tensor for _, tensor in mine])
                late.expect_rows(*_places(mine), rows, blocks)
        if starts is not None:
            self._start_drift(late, group, starts)
        late.end()

    def _start_drift(
        self, late: LateTable, group: list[tuple[int, torch.Tensor]], starts: Sequence[torch.Tensor | None]
    ) -> None:
        places, pairs = [], []
        for place, tensor in group:
            given = starts[place]
            start = None if given is None else dense_of(given)
            if start is not None and start.shape == tensor.shape and start.device == tensor.device:
                places.append(place)
                pairs.append((tensor, start))
        if pairs:
            late.expect_drift(places, distances_of(pairs))


@dataclass(frozen=True, slots=True, eq=False)
class TensorStatistics:
    """Statistics of one tensor: known, or as rows that are still on its device."""

    known: Rows | None
    rows: torch.Tensor | None = None
    blocks: int = 1
    size: int = 0


def started_column(tensor: torch.Tensor) -> TensorStatistics:
    """Statistics of one tensor; of one on a GPU they stay there, as small rows, until they are `gathered`."""
    with torch.no_grad():
        dense = dense_of(tensor) if tensor.is_cuda and tensor.layout is torch.strided else None
        if dense is None or not dense.numel():
            return TensorStatistics(statistics_of([None if tensor.is_cuda else tensor]))
        rows, blocks = rows_of([dense])
        return TensorStatistics(None, rows, blocks[0], dense.numel())


def gathered(columns: Sequence[TensorStatistics]) -> LateTable:
    """One table of many columns: known ones are in it, the others come with one copy from each device."""
    late = LateTable(len(columns))
    devices: dict[torch.device, list[tuple[int, TensorStatistics]]] = {}
    for place, column in enumerate(columns):
        if column.known is not None:
            late.table[:, place] = column.known[:, 0]
        elif column.rows is not None:
            devices.setdefault(column.rows.device, []).append((place, column))
    for device, group in devices.items():
        with torch.no_grad(), torch.cuda.device(device):
            late.begin()
            rows = torch.cat([column.rows for _, column in group if column.rows is not None], dim=1)
            sizes, blocks = [column.size for _, column in group], [column.blocks for _, column in group]
            late.expect_rows([place for place, _ in group], sizes, rows, blocks)
            late.end()
    return late


def _places(group: list[tuple[int, torch.Tensor]]) -> tuple[list[int], list[int]]:
    return [place for place, _ in group], [tensor.numel() for _, tensor in group]


def _fills_memory(tensor: torch.Tensor) -> bool:
    """Whether its elements are exactly those from its address on, in some order."""
    return tensor.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def _to_host(rows: torch.Tensor) -> torch.Tensor:
    return torch.empty(rows.shape, dtype=torch.float64, device="cpu", pin_memory=True).copy_(rows, non_blocking=True)


def _recorded_event() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
