"""On a real GPU: one launch gives the numbers that the CPU gives, for tensors of every kind, without waiting."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from stethos.guard import Guard
from stethos.observe.cuda import fused
from stethos.observe.device_statistic import DeviceStatistics, gathered, started_column
from stethos.observe.statistic import STATISTICS, drift_of, statistics_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.fixture(scope="module")
def device() -> DeviceStatistics:
    """With the kernel of every type compiled."""
    device = DeviceStatistics(Guard(strict=True).run)
    for dtype in FLOATS:
        device.kernels.compile(dtype)
    return device


def tensors_of(dtype: torch.dtype) -> list[torch.Tensor | None]:
    """Whole chunks, ends, an unaligned view, gaps, another order, nothing finite, nothing at all."""
    torch.manual_seed(1)
    small = 1e-3 if dtype is torch.float16 else 1e-25
    large = 1e4 if dtype is torch.float16 else 1e30
    noise = torch.randn(300_000, dtype=torch.float64)
    odd = noise[:20_000].clone()
    odd[[5, 8200, 19_999]] = torch.tensor([math.nan, math.inf, -math.inf], dtype=torch.float64)
    odd[100:200] = 0.0
    plain = [
        noise[:8192], noise, noise[:8191], noise[1:30_000], noise.reshape(300, 1000).t(),
        noise.reshape(300, 1000)[:, ::2],
        noise[:288].reshape(4, 8, 3, 3).contiguous(memory_format=torch.channels_last),
        noise * small, noise * large, 100 + noise / 64, odd, torch.full((9000,), math.nan), torch.zeros(10_000),
        torch.tensor([2.5]), torch.tensor(3.0), torch.empty(0),
    ]  # fmt: skip
    base = noise.to(dtype).cuda()
    return [None, *(tensor.to(dtype).cuda() for tensor in plain), base[3:100_001], base[1:20]]


def same(got: np.ndarray, wanted: np.ndarray, dtype: torch.dtype, largest: np.ndarray) -> None:
    close = 1e-12 if dtype is torch.float64 else 2e-6
    for name, mine, other in zip(STATISTICS, got, wanted, strict=True):
        room = np.nan_to_num(largest) * close if name in ("mean", "std") else 0.0
        assert (np.abs(mine - other) <= close * np.abs(other) + room)[~np.isnan(other)].all(), (name, mine, other)
        assert (np.isnan(mine) == np.isnan(other)).all(), name


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_launch_says_what_the_cpu_says(device: DeviceStatistics, dtype: torch.dtype) -> None:
    tensors = tensors_of(dtype)
    wanted = statistics_of([None if tensor is None else tensor.cpu() for tensor in tensors])
    largest = np.maximum(np.abs(wanted[3]), np.abs(wanted[4]))
    for _ in range(3):  # the counters are left ready for the next launch
        late = device.start(tensors)
        torch.cuda.synchronize()
        assert late.is_there() and late.read() > 0
        same(late.table, wanted, dtype, largest)


def checksum_of(tensor: torch.Tensor) -> int:
    """The slow plain way: every element's bits as a whole number, in Python."""
    word = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    whole = sum(tensor.cpu().contiguous().view(word).reshape(-1).tolist()) % (1 << 64)
    return (whole ^ whole >> 52) & ((1 << 52) - 1)


@pytest.mark.parametrize("has_kernel", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_changed_bit_changes_the_checksum(
    device: DeviceStatistics, dtype: torch.dtype, has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernel:
        monkeypatch.setattr(fused.Kernels, "of", lambda self, dtype: None)
    tensors = [tensor for tensor in tensors_of(dtype) if tensor is not None and tensor.numel()]
    word = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    wanted = [checksum_of(tensor) for tensor in tensors]
    for bit in (None, 0, 8 * dtype.itemsize - 1):
        if bit is not None:
            tensors = [tensor.contiguous().clone() for tensor in tensors]
            for tensor in tensors:
                tensor.reshape(-1)[:1].view(word).bitwise_xor_(-1 << bit if bit else 1)
        late = device.start(tensors)
        torch.cuda.synchronize()
        late.read()
        found = late.checksums.astype(np.int64).tolist()
        assert found == [checksum_of(tensor) for tensor in tensors]
        assert bit is None or not any(mine == other for mine, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_torch_alone_says_the_same(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused.Kernels, "of", lambda self, dtype: None)
    tensors = tensors_of(dtype)
    wanted = statistics_of([None if tensor is None else tensor.cpu() for tensor in tensors])
    late = DeviceStatistics(Guard(strict=True).run).start(tensors)
    torch.cuda.synchronize()
    late.read()
    same(late.table, wanted, dtype, np.maximum(np.abs(wanted[3]), np.abs(wanted[4])))


def test_drift_and_columns_are_those_of_the_cpu(device: DeviceStatistics) -> None:
    now = [torch.randn(100, 100, device="cuda"), torch.randn(7, device="cuda")]
    start = [torch.randn(100, 100, device="cuda"), torch.zeros(7, device="cuda")]
    late = device.start(now, start)
    columns = gathered([started_column(tensor) for tensor in (*now, torch.ones(3))])
    torch.cuda.synchronize()
    late.read()
    columns.read()
    here = [tensor.cpu() for tensor in now]
    assert late.drift == pytest.approx(drift_of(here, [tensor.cpu() for tensor in start]))
    assert columns.table == pytest.approx(statistics_of([*here, torch.ones(3)]), rel=1e-5, abs=1e-7)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_device(device: DeviceStatistics) -> None:
    tensors = [torch.randn(1000, 1000, device="cuda"), torch.randn(10, device="cuda")]
    device.start(tensors)  # plans are made and memory is pinned
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    torch.cuda.set_sync_debug_mode("error")
    try:
        late = device.start(tensors, [None, None])
        was_there = late.is_there()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not was_there
    torch.cuda.synchronize()
    assert late.is_there()


def test_a_kernel_is_compiled_once_whatever_the_sizes(device: DeviceStatistics) -> None:
    from stethos.observe.cuda.kernel import reduce_all

    def compiled() -> int:
        return sum(len(cache[0]) for cache in reduce_all.device_caches.values())

    device.start([torch.randn(5000, device="cuda")])
    before = compiled()
    for count in (1, 2, 15, 16, 17, 64, 100):
        device.start([torch.randn(4096 + 16 * count, device="cuda") for _ in range(count)]).is_there()
        torch.cuda.synchronize()
    assert compiled() == before


def test_while_a_graph_is_captured_nothing_is_started(device: DeviceStatistics) -> None:
    tensor = torch.randn(5000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.add_(1)
        is_free = device.is_free([tensor])
    assert not is_free and device.is_free([torch.ones(3)])


def test_samples_that_are_never_read_do_not_pile_up(device: DeviceStatistics) -> None:
    tensor = torch.randn(5000, device="cuda")
    fresh = DeviceStatistics(Guard(strict=True).run)
    fresh.kernels.compile(torch.float32)
    late = [fresh.start([tensor]) for _ in range(20) if fresh.is_free([tensor])]
    assert len(late) == 8
    torch.cuda.synchronize()
    for one in late:
        one.read()
    assert fresh.is_free([tensor])
