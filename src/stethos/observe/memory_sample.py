"""Tensor memory on sampled iterations: by class, by operator, and what stays alive that should not."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stethos.observe.budget import SampleBudget
from stethos.observe.holder import Holder, holder_of
from stethos.observe.memory_trace import MemoryTrace, NewStorage, Place, drop_stale
from stethos.observe.program_line import ProgramLines
from stethos.observe.session import Session
from stethos.schema import MEMORY, NULL_F64, NULL_I32

if TYPE_CHECKING:
    from stethos.observe.optimizers import Watched

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_MOST_OPS = 200  # rows of operators in a sample, the largest
_MOST_KEPT = 20_000  # storages looked after, to see whether they outlive their iterations
_MOST_TRACES = 64
_LINGER_STEPS = 3  # a storage that lives this many steps longer than its iteration is kept by somebody
_LEAST_TRACES = 2
_MOST_LEAKS = 8
Classes = dict[tuple[str, str], dict[int, int]]  # class and device: sizes by storage


@dataclass(slots=True, eq=False)
class _Traced:
    """What came to life in one traced iteration and is not known to have gone."""

    step: int
    born: list[NewStorage]


@dataclass(slots=True)
class _Row:
    names: Mapping[str, str]
    numbers: Mapping[str, float] = field(default_factory=dict)


class MemorySampler:
    """Owned by the module tracer, which says when an iteration begins and ends. Runs on the training thread."""

    def __init__(self, session: Session, sample_budget: SampleBudget | None) -> None:
        self.sample_budget = sample_budget
        self._session = session
        self._lines: ProgramLines | None = None
        self._trace: MemoryTrace | None = None
        self._traced: list[_Traced] = []
        self._peaks: dict[tuple[str, str], int] = {}
        self._holders: dict[str, Holder] = {}
        self.calls = self.own_ns = 0  # operators of the last iteration traced, and what looking at them took

    @property
    def is_on(self) -> bool:
        return self._trace is not None

    def can_begin(self) -> bool:
        """Whether it is time for a sample, and nobody else has a dispatch mode on."""
        if self._trace is not None or self.sample_budget is None or not self.sample_budget.can_afford():
            return False
        drop_stale()
        return not torch._C._len_torch_dispatch_stack() and not torch.is_inference_mode_enabled()

    def begin(self, place: Callable[[], Place]) -> None:
        """Trace the operators of this thread from here on."""
        self._lines = self._lines or ProgramLines()
        trace = MemoryTrace(lambda callback: self._session.guard.wrap("memory", callback), place, self._lines)
        trace.switch_on()
        self._trace = trace

    def backward_begins(self) -> None:
        if self._trace is not None:
            self._trace.backward_begins()

    def stop(self) -> None:
        """Take the mode away; one that lies under another's stays, and only passes on."""
        trace, self._trace = self._trace, None
        if trace is not None:
            try:
                trace.switch_off()
            finally:
                drop_stale()

    def end(self, watched: Watched, step: int, names: Mapping[int, str]) -> None:
        """The iteration is over: record it."""
        trace = self._trace
        self.stop()
        if trace is None:
            return
        self.calls, self.own_ns = trace.calls, trace.own_ns
        classes = classes_of(watched)
        rows = [*self._class_rows(classes, trace), *_operator_rows(trace, names)]
        born = [one for one in trace.alive.values() if one.line]
        self._traced = [*self._traced[-_MOST_TRACES + 1 :], _Traced(step, born[:_MOST_KEPT])]
        rows += self._growth_rows(classes, step)
        self._put(rows, watched.number, step)

    # Rows -------------------------------------------------------------------------------------------

    def _class_rows(self, classes: Classes, trace: MemoryTrace) -> Iterable[_Row]:
        known = {key for storages in classes.values() for key in storages}
        totals = {key: (sum(sizes.values()), len(sizes)) for key, sizes in classes.items()}
        for device, saved in trace.saved_bytes.items():
            totals["activation", device] = saved, 0
        devices = {device for _, device in classes} | set(trace.now_bytes)
        for device in devices:
            if device.startswith("cuda"):
                stats = torch.cuda.memory_stats(torch.device(device))
                mine = sum(
                    size for (kind, where), (size, _) in totals.items() if where == device and kind != "activation"
                )
                allocated = int(stats["allocated_bytes.all.current"])
                totals["other", device] = max(allocated - mine, 0), 0
                totals["cached", device] = int(stats["reserved_bytes.all.current"]) - allocated, 0
                self._peaks["cached", device] = int(stats["reserved_bytes.all.peak"])
            else:
                seen = {one.key: one.size_bytes for one in self._alive(device) if one.key not in known}
                totals["other", device] = sum(seen.values()), len(seen)
        for (kind, device), (size, count) in totals.items():
            peak = max(self._peaks.get((kind, device), 0), size)
            if kind == "activation":
                peak = max(peak, trace.peak_bytes.get(device, 0))
            self._peaks[kind, device] = peak
            numbers = {"bytes": size, "peak_bytes": peak, "count": count if count else NULL_F64}
            yield _Row({"class": kind, "device": device}, numbers)

    def _alive(self, device: str) -> Iterable[NewStorage]:
        """Storages of earlier traced iterations that are still there."""
        for traced in self._traced:
            for one in traced.born:
                if one.device == device and one.storage() is not None:
                    yield one

    def _growth_rows(self, classes: Classes, step: int) -> Iterable[_Row]:
        """Lines whose storages outlive their iterations, in every traced iteration that is long enough ago."""
        known = {key for storages in classes.values() for key in storages}
        kept: dict[tuple[str, str], list[tuple[int, int, NewStorage]]] = defaultdict(list)
        old = 0
        for traced in self._traced:
            if traced.step + _LINGER_STEPS > step:
                continue
            traced.born = [one for one in traced.born if one.storage() is not None]
            old += 1
            by_line: dict[tuple[str, str], list[NewStorage]] = defaultdict(list)
            for one in traced.born:
                if one.key not in known:
                    by_line[one.line, one.device].append(one)
            for key, born in by_line.items():
                kept[key].append((sum(one.size_bytes for one in born), len(born), born[0]))
        found = [(key, each) for key, each in kept.items() if len(each) >= max(_LEAST_TRACES, (old + 1) // 2)]
        found.sort(key=lambda pair: -sum(size for size, *_ in pair[1]))
        for (line, device), each in found[:_MOST_LEAKS]:
            holder = self._holder(line, each[-1][2])
            sizes = [size for size, *_ in each]
            yield _Row(
                {"device": device, "line": line, "holder": _shown(holder)},
                {"bytes": sum(sizes), "count": sum(count for _, count, _ in each), "allocated_bytes": sizes[-1]},
            )

    def _holder(self, line: str, born: NewStorage) -> Holder:
        """Who keeps what that line makes; asked once."""
        known = self._holders.get(line)
        if known is None:
            tensor = born.tensor()
            known = Holder()
            if tensor is not None and self._lines is not None:
                known = holder_of(tensor, sys._getframe(1), self._lines)
                if tensor.grad_fn is not None and known.text:
                    known = Holder(known.text + ", with its graph", known.line)
            self._holders[line] = known
        return known

    def _put(self, rows: list[_Row], optimizer: int, step: int) -> None:
        if not rows:
            return
        names, numbers = (
            [column.name for column in MEMORY.columns if (column.kind.value == "name") is wanted]
            for wanted in (True, False)
        )
        ids = np.full((len(names), len(rows)), NULL_I32, np.int32)
        values = np.full((len(numbers), len(rows)), NULL_F64)
        for place, row in enumerate(rows):
            for name, text in row.names.items():
                if text:
                    ids[names.index(name), place] = self._session.name_id(text)
            for name, number in row.numbers.items():
                values[numbers.index(name), place] = number
        self._session.put_frame(
            MEMORY.number, ids.tobytes(), values.tobytes(), rows=len(rows), optimizer=optimizer, step=step
        )  # fmt: skip


def _shown(holder: Holder) -> str:
    return f"{holder.text} at {holder.line}" if holder.line else holder.text


def _operator_rows(trace: MemoryTrace, names: Mapping[int, str]) -> Iterable[_Row]:
    """The operators that moved the most memory."""
    totals: dict[tuple[str, str, str], Any] = defaultdict(lambda: [0, 0, 0])
    for (place, op, device), total in trace.totals.items():
        module = names.get(place, "") if isinstance(place, int) else place or ""
        mine = totals[module, op, device]
        for index, number in enumerate((total.calls, total.allocated_bytes, total.freed_bytes)):
            mine[index] += number
    largest = sorted(totals.items(), key=lambda pair: -(pair[1][1] + pair[1][2]))[:_MOST_OPS]
    for (module, op, device), (calls, allocated, freed) in largest:
        if allocated or freed:
            yield _Row(
                {"device": device, "module": module, "op": op},
                {"count": calls, "allocated_bytes": allocated, "freed_bytes": freed},
            )


def classes_of(watched: Watched) -> Classes:
    """The storages of an optimizer's parameters, gradients and state and of its model's buffers, each once."""
    classes: Classes = {}
    seen: set[int] = set()

    def add(kind: str, value: object) -> None:
        if type(value) in _PLAIN and isinstance(value, torch.Tensor) and value.layout is torch.strided:
            storage = value.untyped_storage()
            key = storage._cdata
            if key not in seen and not value.is_meta:
                seen.add(key)
                classes.setdefault((kind, str(value.device)), {})[key] = storage.nbytes()

    root = watched.named.root() if watched.named.root is not None else None
    parameters = [*watched.params, *(root.parameters() if root is not None else ())]
    for parameter in parameters:
        add("model", parameter)
    for buffer in root.buffers() if root is not None else ():
        add("buffer", buffer)
    for parameter in parameters:
        add("gradient", parameter.grad)
    optimizer = watched.optimizer()
    for state in optimizer.state.values() if optimizer is not None else ():
        for value in state.values() if isinstance(state, dict) else ():
            for one in value if isinstance(value, list | tuple) else (value,):
                add("optimizer", one)
    return classes
