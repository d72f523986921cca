"""Where the time of a GPU goes, from a trace of torch's profiler: by class of kernel, and what idle gaps wait for.

Each moment counts once: as computing if a kernel computes, else as a copy, else as communication, else as idle. So
communication is what is not hidden behind computing, and the parts add up to the whole.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from stethos.live.kernel_class import CLASSES, KernelClass, class_of

IdleCause = Literal["data", "communication", "host"]
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_LATER: tuple[KernelClass, ...] = ("memory copies", "communication")  # count where nothing else runs, in this order
_LEAST_GAP_US = 1.0  # between two kernels in a row there is always something


class _Span(NamedTuple):
    """A stretch of time in microseconds."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """The time of one GPU in a trace, in ms; `idle_ms` by what it waited for."""

    device: int
    whole_ms: float
    class_ms: dict[KernelClass, float]
    idle_ms: dict[IdleCause, float]
    hidden_communication_ms: float
    kernels: int
    slowest: dict[KernelClass, str] = field(default_factory=dict)  # the kernel that takes most of its class

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def device_times(events: Iterable[dict[str, Any]]) -> list[DeviceTime]:
    """One for each GPU that worked in a trace, in order; none for a trace of the CPU alone."""
    spans = [event for event in events if event.get("ph") == "X" and _is_number(event.get("ts"), event.get("dur"))]
    on_device = [event for event in spans if event.get("cat") in _ON_DEVICE]
    if not on_device:
        return []
    whole = _Span(min(event["ts"] for event in spans), max(event["ts"] + event["dur"] for event in spans))
    stepping = _launched_in_steps(spans)
    data = _union(_span(event) for event in spans if _is_data(event))
    talks = _union(_span(event) for event in spans if _is_talk(event))
    by_device: dict[int, list[dict[str, Any]]] = {}
    for event in on_device:
        by_device.setdefault(_device_of(event), []).append(event)
    return [_time_of(device, mine, whole, stepping, data, talks) for device, mine in sorted(by_device.items())]


def _time_of(
    device: int, events: list[dict[str, Any]], whole: _Span, stepping: set[Any], data: list[_Span], talks: list[_Span]
) -> DeviceTime:
    spans: dict[KernelClass, list[_Span]] = {}
    by_name: dict[tuple[KernelClass, str], float] = {}
    for event in events:
        found = _class_of_event(event, stepping)
        spans.setdefault(found, []).append(_span(event))
        name = str(event.get("name", ""))
        by_name[found, name] = by_name.get((found, name), 0.0) + event["dur"]
    computing = [(span, found) for found in CLASSES if found not in _LATER for span in spans.get(found, ())]
    class_us = _exclusive(computing)
    taken = _union(span for span, _ in computing)
    for found in _LATER:
        mine = _union(spans.get(found, ()))
        class_us[found] = _length(mine) - _overlap(mine, taken)
        taken = _union([*taken, *mine])
    communication = _union(spans.get("communication", ()))
    gaps = [gap for gap in _gaps(taken, whole) if gap.end - gap.start >= _LEAST_GAP_US]
    waits_data = _overlap(gaps, data)
    waits_talk = _overlap(gaps, _without(talks, data))
    idle = _length(gaps)
    slowest: dict[KernelClass, str] = {}
    for (found, name), _ in sorted(by_name.items(), key=lambda item: -item[1]):
        slowest.setdefault(found, name)
    return DeviceTime(
        device, (whole.end - whole.start) * 1e-3, {found: us * 1e-3 for found, us in class_us.items() if us > 0},
        {"data": waits_data * 1e-3, "communication": waits_talk * 1e-3,
         "host": max(idle - waits_data - waits_talk, 0.0) * 1e-3},
        max(_length(communication) - class_us["communication"], 0.0) * 1e-3, len(events), slowest,
    )  # fmt: skip


def _class_of_event(event: dict[str, Any], stepping: set[Any]) -> KernelClass:
    """By its name; whatever an optimizer's step has launched is the optimizer's."""
    if event["cat"] != "kernel":
        return "memory copies"
    found = class_of(str(event.get("name", "")))
    if found != "communication" and _correlation(event) in stepping:
        return "optimizer"
    return found


def _launched_in_steps(spans: list[dict[str, Any]]) -> set[Any]:
    """The correlation ids of what was launched inside an optimizer's step, on the thread that steps."""
    steps: dict[Any, list[_Span]] = {}
    for event in spans:
        if str(event.get("name", "")).startswith("Optimizer.step#") and event.get("cat") != "gpu_user_annotation":
            steps.setdefault(event.get("tid"), []).append(_span(event))
    steps = {thread: _union(own) for thread, own in steps.items()}
    return {
        _correlation(event)
        for event in spans
        if event.get("cat") in _LAUNCHES and _contains(steps.get(event.get("tid"), []), event["ts"])
    } - {None}


def _is_data(event: dict[str, Any]) -> bool:
    """Whether the program waits for a batch here: torch marks every `next` of a data loader."""
    return str(event.get("name", "")).startswith("enumerate(DataLoader)#")


def _is_talk(event: dict[str, Any]) -> bool:
    return event.get("cat") in ("cpu_op", "user_annotation") and class_of(str(event.get("name", ""))) == "communication"


def _correlation(event: dict[str, Any]) -> Any:
    return (event.get("args") or {}).get("correlation")


def _device_of(event: dict[str, Any]) -> int:
    device = (event.get("args") or {}).get("device", event.get("pid", 0))
    return int(device) if isinstance(device, int | float) or str(device).isdigit() else 0


def _is_number(*values: object) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 for value in values)


# Stretches of time -------------------------------------------------------------------------------------------------


def _span(event: dict[str, Any]) -> _Span:
    return _Span(float(event["ts"]), float(event["ts"]) + float(event["dur"]))


def _union(spans: Iterable[_Span]) -> list[_Span]:
    """Stretches that neither overlap nor touch, in order."""
    found: list[_Span] = []
    for span in sorted(spans):
        if found and span.start <= found[-1].end:
            found[-1] = _Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def _length(spans: Iterable[_Span]) -> float:
    return sum(span.end - span.start for span in spans)


def _overlap(first: Sequence[_Span], second: Sequence[_Span]) -> float:
    """How long two unions are both on."""
    total, place = 0.0, 0
    for span in first:
        while place < len(second) and second[place].end <= span.start:
            place += 1
        at = place
        while at < len(second) and second[at].start < span.end:
            total += min(span.end, second[at].end) - max(span.start, second[at].start)
            at += 1
    return total


def _gaps(spans: list[_Span], whole: _Span) -> list[_Span]:
    edges = [whole.start, *(edge for span in spans for edge in span), whole.end]
    return [_Span(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]


def _without(spans: list[_Span], others: list[_Span]) -> list[_Span]:
    """The parts of a union outside of another."""
    return [
        part
        for span in spans
        for part in _gaps(
            [_clipped(one, span) for one in others if one.end > span.start and one.start < span.end], span
        )
    ]


def _clipped(one: _Span, to: _Span) -> _Span:
    return _Span(max(one.start, to.start), min(one.end, to.end))


def _contains(spans: list[_Span], moment: float) -> bool:
    at = bisect.bisect_right(spans, moment, key=lambda span: span.start) - 1
    return at >= 0 and moment < spans[at].end


def _exclusive(spans: list[tuple[_Span, KernelClass]]) -> dict[KernelClass, float]:
    """By class the time in which its kernels run; where several run at a time, the one that began first counts."""
    found: dict[KernelClass, float] = dict.fromkeys(CLASSES, 0.0)
    end = float("-inf")
    for span, kernel_class in sorted(spans):
        found[kernel_class] += max(span.end - max(span.start, end), 0.0)
        end = max(end, span.end)
    return found
