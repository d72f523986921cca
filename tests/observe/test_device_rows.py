"""What the GPU's path consists of besides a GPU: cutting, joining, late rows, and the budget for what comes later."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from stethos.observe.budget import Budget
from stethos.observe.cuda.plan import ALIGNMENT, head_of, plan_of
from stethos.observe.device_row import checksums_in, columns_of, joined, rows_of
from stethos.observe.device_statistic import gathered, started_column
from stethos.observe.late_row import HostLead, Mark, TracePrice, _spent_ns
from stethos.observe.statistic import statistics_of
from stethos.record.gpu import GpuSampler


@pytest.mark.parametrize("block", [4, 8, 1000])
def test_every_element_is_in_one_chunk_and_whole_chunks_are_aligned(block: int) -> None:
    sizes, heads = [1, 4, 5, 17, 8, 3], [0, 0, 3, 1, 0, 7]
    plan = plan_of(sizes, heads, block)
    seen = [set() for _ in sizes]
    for tensor, start, length in plan.chunks.tolist():
        elements = set(range(start, start + length))
        assert 0 < length <= max(block, heads[tensor]) and not seen[tensor] & elements
        assert length < block or (start - heads[tensor]) % block == 0
        seen[tensor] |= elements
    assert [len(elements) for elements in seen] == sizes
    for tensor, (first, count) in enumerate(plan.spans.tolist()):
        assert (plan.chunks[first : first + count, 0] == tensor).all()


@pytest.mark.parametrize("element_bytes", [2, 4, 8])
def test_the_head_ends_on_an_alignment(element_bytes: int) -> None:
    for address in range(0, 64, element_bytes):
        head = head_of(address, element_bytes)
        assert (address + head * element_bytes) % ALIGNMENT == 0 and head * element_bytes < ALIGNMENT


def test_blocks_are_joined_to_the_statistics_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stethos.observe.device_row.BLOCK", 100)
    torch.manual_seed(0)
    odd = torch.randn(250)
    odd[[3, 120, 240]] = torch.tensor([torch.nan, torch.inf, 0.0])
    tensors = [torch.randn(1000) + 50, torch.randn(7), odd, torch.full((150,), torch.nan)]
    rows, blocks = rows_of(tensors)
    assert blocks == [10, 1, 3, 2]
    table = columns_of(joined(rows.numpy(), blocks), [tensor.numel() for tensor in tensors])
    np.testing.assert_allclose(table, statistics_of(tensors), rtol=1e-5, atol=1e-6)
    sums = [sum(tensor.view(torch.int32).tolist()) % (1 << 64) for tensor in tensors]
    assert checksums_in(joined(rows.numpy(), blocks)).tolist() == [(one ^ one >> 52) % (1 << 52) for one in sums]


def test_a_trace_costs_what_its_step_takes_longer_than_others() -> None:
    price = TracePrice()
    for step in range(100):
        price.note(60e6 if step % 10 == 5 else 45e6 + step % 3 * 1e5, is_traced=step % 10 == 5)
        if step % 10 == 5:
            price.charge(12_000_000)
    assert price.take_lost_ns() == pytest.approx(10 * 15e6, rel=0.02)
    assert price.take_lost_ns() == 0
    price.note(400e6, is_traced=False)  # a step that waits for its batch raises the usual one but little
    price.note(60e6, is_traced=True)
    assert price.take_lost_ns() == 0  # the host has not said yet what it spent
    price.charge(12_000_000)
    assert price.take_lost_ns() == pytest.approx(15e6, rel=0.2)


def test_a_trace_is_not_charged_with_an_evaluation_and_without_a_device_time_with_the_hosts() -> None:
    price = TracePrice()
    price.note(900e6, is_traced=True)  # the first step: none to compare it with
    price.charge(10_000_000)
    assert price.take_lost_ns() == 10_000_000
    price.note(45e6, is_traced=False)
    price.note(45e6 + 10e9, is_traced=True)
    price.charge(10_000_000)
    assert price.take_lost_ns() == 20_000_000


def test_columns_in_cpu_memory_are_known_at_once() -> None:
    tensors = [torch.randn(30), torch.ones(2, 2)]
    late = gathered([started_column(tensor) for tensor in tensors])
    assert not late.is_late and late.is_there()
    np.testing.assert_array_equal(late.table, statistics_of(tensors))


class Event:
    """A moment on a device, and when it was queued on a host whose clock began later."""

    device = torch.device("cuda", 0)

    def __init__(self, at_ms: float, queued_ms: float = 0.0) -> None:
        self.at_ms = at_ms
        self.queued_ns = int((queued_ms - 1000.0) * 1e6)

    def elapsed_time(self, other: Event) -> float:
        return other.at_ms - self.at_ms


def spent(*marks: tuple[Mark, float], host: list[int] | None = None) -> list[float]:
    events = [(what, Event(at)) for what, at in marks]
    return [ns / 1e6 for ns in _spent_ns(events, gaps_of(events), host or [0, 0, 0])]


def gaps_of(events: list[tuple[Mark, Event]]) -> list[int]:
    return [int(a.elapsed_time(b) * 1e6) for (_, a), (_, b) in itertools.pairwise(events)]


def lead_after(steps: int, host_ms: float, device_ms: float, *, waits: bool = False) -> HostLead:
    """A host that queues each of three parts of a step in so many ms, and a device that works off each in so many."""
    lead, host, device, last = HostLead(), 0.0, 0.0, None
    for _ in range(steps):
        marks = [] if last is None else [(Mark.BEFORE, last)]
        for what in (Mark.BACKWARD, Mark.OPTIMIZER, Mark.END):
            host += host_ms
            device = max(device, host) + device_ms
            last = Event(device, host)
            marks.append((what, last))
        if waits:
            host = device
        lead.note(marks, gaps_of(marks))
    return lead


def test_the_host_is_ahead_of_a_busy_device() -> None:
    lead = lead_after(100, 1.0, 3.0)
    assert lead.lead_ns > 100e6  # 6 ms more with each step
    assert lead.lost_ns(2e6) == 0 and lead.lost_on_device_ns(2e6) == 2e6


@pytest.mark.parametrize(("host_ms", "device_ms", "waits"), [(3.0, 1.0, False), (3.0, 2.9, False), (1.0, 3.0, True)])
def test_a_device_that_waits_once_in_a_step_notices_all_that_the_host_does(
    host_ms: float, device_ms: float, waits: bool
) -> None:
    lead = lead_after(100, host_ms, device_ms, waits=waits)
    assert lead.lost_ns(2e6) > 1.8e6 and lead.lost_on_device_ns(2e6) < 0.2e6


def test_a_step_is_split_at_its_events() -> None:
    marks = ((Mark.BEFORE, 1.0), (Mark.BACKWARD, 4.0), (Mark.BEFORE, 10.0), (Mark.OPTIMIZER, 11.0), (Mark.END, 13.0))
    assert spent(*marks) == [3.0, 6.0, 2.0]


def test_accumulated_backwards_add_up() -> None:
    half = ((Mark.BEFORE, 0.0), (Mark.BACKWARD, 1.0))
    later = ((Mark.BEFORE, 3.0), (Mark.BACKWARD, 5.0), (Mark.BEFORE, 9.0), (Mark.OPTIMIZER, 9.0), (Mark.END, 10.0))
    assert spent(*half, *later) == [3.0, 6.0, 1.0]


def test_what_no_event_marks_is_the_hosts_time() -> None:
    first = ((Mark.BACKWARD, 4.0), (Mark.BEFORE, 10.0), (Mark.OPTIMIZER, 10.0), (Mark.END, 12.0))
    assert spent(*first, host=[7_000_000, 1, 1]) == [7.0, 6.0, 2.0]
    assert spent(host=[1_000_000, 2_000_000, 3_000_000]) == [1.0, 2.0, 3.0]


def test_what_a_device_spends_is_paid_for_later() -> None:
    budget = Budget(0.01, {"layers": 1.0})
    sample_budget = budget.by_kind["layers"]
    taken = 0
    for _ in itertools.repeat(None, 1000):
        budget.earn(50e6, 0.0)  # steps of 50 ms: 0.5 ms each, of which 85 % may be spent
        if sample_budget.can_afford():
            taken += 1
            sample_budget.pay(100e6 if taken == 1 else 1e6, is_cold=True)
            sample_budget.pay_more(1e6)
    assert 1000 * 0.425 / 2 * 0.9 < taken < 1000 * 0.425 / 2 * 1.1  # 2 ms each, the cold one aside


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stethos.record.gpu._LIBRARY", "libnvidia-ml-that-is-not-there.so.1")
    assert GpuSampler().sample(1, is_alone=True) == []
