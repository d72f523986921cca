"""Rows of steps whose numbers are still on a device: held back until they have come, then written whole.

`.item()` on a CUDA tensor waits for everything queued before it. Here a loss
is copied into pinned memory behind the training's own work, the gradient norm
comes with the layer statistics, and how long forward, backward and optimizer
took on the device is told by events between them. What is still on its way
when the process is killed is lost with it.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from stethos.clock import monotonic_ns
from stethos.schema import NULL_F64, STEPS

if TYPE_CHECKING:
    from stethos.observe.sample import LateSample

_SLOTS = 256
_MOST_MARKS = 256  # of one step: with more backwards the host's times stay
LAST_WAIT_S = 0.5
_SMOOTH, _SMOOTH_FALL = 0.1, 0.5
_DRIFT = 2e-5  # of two clocks against each other
_SLOW = 1.5  # of the usual step: one that takes longer waits for something else
_MOST_CHARGED = 2  # of what the host has spent
# Positions among the values of a row of `steps`.
_LOSS, _GRAD_NORM, *_TIMES = map(
    list(STEPS.slot_fields).index, ("loss", "grad_norm", "forward_ns", "backward_ns", "optimizer_ns")
)


_raw_stream_of: Callable[[int], int] = torch._C.__dict__.get("_cuda_getCurrentRawStream", lambda _: 0)
_STREAMS: dict[tuple[int, int], Any] = {}  # to ask torch for it takes longer than to record an event
_FREE: dict[int, deque[Any]] = {}  # events by device that nobody needs any more: a new one takes twice as long


class Mark(Enum):
    """What begins on the device where an event was recorded."""

    BEFORE = 0  # forward work may begin: a batch has come, or the last step or backward has ended
    BACKWARD = 1
    OPTIMIZER = 2
    END = 3


class LateStep:
    """What one step waits for."""

    __slots__ = ("is_traced", "losses", "marks", "sample")

    def __init__(self) -> None:
        self.is_traced = False  # module by module, or operator by operator
        self.losses: list[torch.Tensor] = []  # in pinned memory; a mark follows each
        self.marks: list[tuple[Mark, Any]] = []
        self.sample: LateSample | None = None

    def mark(self, what: Mark) -> None:
        """Note that the device comes to this point of the step. Called on the training thread."""
        event = recorded_event() if len(self.marks) < _MOST_MARKS or what is Mark.END else None
        if event is not None:
            self.marks.append((what, event))

    def loss_if_there(self) -> float | None:
        """The last loss if the device has handed it over already; never waits."""
        if not self.losses or torch.cuda.is_current_stream_capturing():
            return None
        event = next((event for what, event in reversed(self.marks) if what is Mark.BACKWARD), None)  # follows the copy
        return float(self.losses[-1]) if event is not None and event.query() else None


class HostLead:
    """How far the host is ahead of a device, so that what it does besides is not noticed.

    Each mark has two times: when it was queued, on the host's clock, and when the device came to it. What lies between
    them is the lead, up to a constant: the least that was ever seen is none. Only the shortest lead within a step
    counts: where the device has nothing to do once in a step, all that the host does prolongs the step.
    """

    def __init__(self) -> None:
        self.lead_ns = 0.0
        self._last: Any = None  # the last event whose lead is known
        self._last_lead_ns = self._least_ns = 0.0

    def lost_ns(self, host_ns: float) -> float:
        """What a step loses when the host takes that long for something else."""
        return max(host_ns - self.lead_ns, 0.0)

    def lost_on_device_ns(self, device_ns: float) -> float:
        """What a step loses when its device takes that long for something else: nothing if it waits for the host."""
        return min(device_ns, self.lead_ns)

    def note(self, marks: list[tuple[Mark, Any]], gaps_ns: list[int]) -> float:
        """The device has come to all marks of a step; `gaps_ns` lie between them, by its clock.

        Returns how long the device took since the last mark of the step before, 0 if that is not known.
        """
        if not marks:
            return 0.0
        first, elapsed_ns = marks[0][1], 0.0
        if self._last is None or self._last.device != first.device:
            self._last = marks[-1][1]
            self._last_lead_ns = self._least_ns = self.lead_ns = 0.0
            return 0.0
        if first is not self._last:
            elapsed_ns = self._last.elapsed_time(first) * 1e6
        began_ns = self._last.queued_ns
        self._least_ns += _DRIFT * (marks[-1][1].queued_ns - began_ns)
        shortest_ns = math.inf
        for place, (_, event) in enumerate(marks):
            elapsed_ns += gaps_ns[place - 1] if place else 0
            lead_ns = self._last_lead_ns + elapsed_ns - (event.queued_ns - began_ns)
            self._least_ns = min(self._least_ns, lead_ns)
            shortest_ns = min(shortest_ns, lead_ns - self._least_ns)
        self._last, self._last_lead_ns = marks[-1][1], lead_ns
        smooth = _SMOOTH_FALL if shortest_ns < self.lead_ns else _SMOOTH
        self.lead_ns += smooth * (shortest_ns - self.lead_ns)
        return elapsed_ns


class TracePrice:
    """What traced steps have lost, by the device's clock: how much longer they took than others do.

    A trace takes a good part of a step, so that one step says enough. What the host spends on it says less: some of it
    passes while the device is busy. But a step may also wait for something else, such as an evaluation, so it is never
    charged with more than twice the host's time.
    """

    def __init__(self) -> None:
        self._usual_ns = 0.0
        self._longer_ns: deque[float | None] = deque()
        self._clocked_ns: deque[int] = deque()

    def note(self, step_ns: float, *, is_traced: bool) -> None:
        """The device has ended a step; 0 if how long it took is not known."""
        if is_traced:
            self._longer_ns.append(max(step_ns - self._usual_ns, 0.0) if step_ns > 0 and self._usual_ns else None)
        elif not self._usual_ns:
            self._usual_ns = step_ns
        elif step_ns > 0:
            self._usual_ns += _SMOOTH * (min(step_ns, _SLOW * self._usual_ns) - self._usual_ns)

    def charge(self, clocked_ns: int) -> None:
        """The host has spent so much on a traced step; steps are charged in the order in which they end."""
        self._clocked_ns.append(clocked_ns)

    def take_lost_ns(self) -> int:
        """What was lost since this was last asked."""
        lost_ns = 0.0
        while self._longer_ns and self._clocked_ns:
            longer_ns, clocked_ns = self._longer_ns.popleft(), self._clocked_ns.popleft()
            lost_ns += clocked_ns if longer_ns is None else min(longer_ns, _MOST_CHARGED * clocked_ns)
        return int(lost_ns)


class LateRows:
    """Holds rows of `steps` until their numbers have reached the host."""

    def __init__(self, lead: HostLead) -> None:
        self._lead = lead
        self.trace_price = TracePrice()
        self._buffers: dict[torch.dtype, list[torch.Tensor]] = {}
        self._next = 0
        self._waiting: deque[tuple[LateStep, Callable[..., bool], tuple[Any, ...]]] = deque()
        self._flushing = threading.Lock()

    def copy(self, loss: torch.Tensor) -> torch.Tensor | None:
        """Start copying a loss; return where it will be, or None where that is not possible."""
        if not loss.is_cuda or loss.numel() != 1 or torch.cuda.is_current_stream_capturing():
            return None
        dtype = torch.float32 if loss.dtype is torch.float32 else torch.float64  # without a conversion if possible
        places = self._buffers.get(dtype)
        if places is None:
            whole = torch.empty(_SLOTS, dtype=dtype, device="cpu", pin_memory=True)
            places = self._buffers[dtype] = list(whole)
        place = places[self._next % _SLOTS]
        self._next += 1
        loss = loss.detach()
        place.copy_(loss.view(()) if loss.dim() else loss, non_blocking=True)
        return place

    def put_later(self, late: LateStep, put: Callable[..., bool], values: tuple[Any, ...]) -> None:
        """Hold a row back; earlier ones whose numbers have arrived are written now."""
        self._waiting.append((late, put, values))
        self.flush()

    def flush(self) -> None:
        with alone(self._flushing) as is_alone:
            while is_alone and self._waiting and self._has_arrived(self._waiting[0][0]):
                self._write(is_known=True)
            while is_alone and len(self._waiting) > _SLOTS // 2:
                self._write(is_known=False)

    def finish(self) -> None:
        """Write everything, waiting a moment for what is still on its way."""
        deadline = time.monotonic() + LAST_WAIT_S
        while self._waiting and time.monotonic() < deadline:
            self.flush()
            time.sleep(0.001)
        while self._waiting:
            self._write(is_known=False)

    def _has_arrived(self, late: LateStep) -> bool:
        if late.marks and not late.marks[-1][1].query():
            return False
        if late.sample is not None and not late.sample.is_there():
            return False
        return all(event.query() for what, event in late.marks if what is Mark.BACKWARD)  # each follows a loss

    def _write(self, *, is_known: bool) -> None:
        late, put, values = self._waiting.popleft()
        row, step_ns = list(values), 0.0
        if late.losses:
            row[_LOSS] = NULL_F64
            if is_known:
                row[_LOSS] = sum(float(place) for place in late.losses)
        if is_known:
            if late.sample is not None:
                row[_GRAD_NORM] = late.sample.grad_norm()
            if len(late.marks) < _MOST_MARKS:
                gaps_ns = [int(a.elapsed_time(b) * 1e6) for (_, a), (_, b) in itertools.pairwise(late.marks)]
                step_ns = self._lead.note(late.marks, gaps_ns)
                spent = _spent_ns(late.marks, gaps_ns, [row[at] for at in _TIMES])
                for place, spent_ns in zip(_TIMES, spent, strict=True):
                    row[place] = spent_ns
        put(*row)
        self.trace_price.note(step_ns, is_traced=late.is_traced)
        if is_known:
            for _, event in late.marks[:-1]:  # the last one may be where the next step begins
                _FREE[event.device.index].append(event)


@contextmanager
def alone(lock: threading.Lock) -> Iterator[bool]:
    """Whether nobody else is at it: a training thread waits for nothing, and leaves the work to who began it."""
    is_alone = lock.acquire(blocking=False)
    try:
        yield is_alone
    finally:
        if is_alone:
            lock.release()


def recorded_event() -> Any:
    """An event on this thread's stream, with the time; None while a graph is captured."""
    if torch.cuda.is_current_stream_capturing():
        return None
    device = torch.cuda.current_device()
    raw = _raw_stream_of(device)
    stream = _STREAMS.get((device, raw))
    if stream is None:
        _STREAMS.clear()
        stream = _STREAMS[device, raw] = torch.cuda.current_stream()
    free = _FREE.get(device)
    if free is None:
        free = _FREE[device] = deque(maxlen=_MOST_MARKS)
    try:
        event = free.pop()
    except IndexError:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    event.queued_ns = monotonic_ns()
    return event


def _spent_ns(marks: list[tuple[Mark, Any]], gaps_ns: list[int], host_ns: list[int]) -> list[int]:
    """Time of the device in forward, backward and optimizer; where no marks were set what the host saw."""
    spent = [0, 0, 0]
    for ((what, _), (following, _)), gap_ns in zip(itertools.pairwise(marks), gaps_ns, strict=True):
        place = {Mark.BEFORE: 0, Mark.BACKWARD: 1, Mark.OPTIMIZER: 2}.get(what)
        if what is Mark.OPTIMIZER and following is Mark.BACKWARD:
            place = 0  # a closure was called again
        if place is not None and (place or following is Mark.BACKWARD):  # forward work ends in a backward
            spent[place] += gap_ns
    return [mine or seen for mine, seen in zip(spent, host_ns, strict=True)]
