"""Times the statistics of all gradients on the GPU: python -m benchmarks.gpu_statistics RESULT JOB"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

from benchmarks.gpu_model import make_model
from stethos.guard import Guard
from stethos.observe.device_statistic import DeviceStatistics
from stethos.observe.statistic import statistics_of

_WARMUP = 5
_SLEEP_CYCLES = 12_000_000  # about 6 ms: some hosts take more than one to launch


def main() -> None:
    job = json.loads(sys.argv[2])
    tensors = [torch.randn_like(parameter) for parameter in make_model().parameters()]
    device = DeviceStatistics(Guard(strict=True).run)
    began = time.monotonic()
    device.kernels.compile(torch.float32)
    compile_s = time.monotonic() - began
    device.kernels.compile(torch.bfloat16)
    elements = sum(tensor.numel() for tensor in tensors)
    flat, halves = torch.randn(elements, device="cuda"), [tensor.bfloat16() for tensor in tensors]
    repeats = job["repeats"]
    times_ms = {
        "one read (sum of one vector)": timed(lambda: flat.sum(), repeats),
        "Stethos, eight statistics and a checksum, float32": timed(lambda: device.start(tensors), repeats),
        "`torch._foreach_norm`, the norm alone": timed(lambda: torch._foreach_norm(tensors), max(5, repeats // 10)),
        "torch, tensor by tensor, on the device": timed(lambda: torch_alone(tensors), max(3, repeats // 40)),
        "the same with seven `.item()` each": timed(lambda: with_items(tensors), max(3, repeats // 40)),
        "Stethos, eight statistics and a checksum, bfloat16": timed(lambda: device.start(halves), repeats),
    }
    result = {
        "times_ms": times_ms, "elements": elements, "tensors": len(tensors), "repeats": repeats,
        "compile_s": compile_s, "error": error_of(device, tensors), "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__, "triton": triton.__version__,
    }  # fmt: skip
    Path(sys.argv[1]).write_text(json.dumps(result), encoding="utf-8")


def timed(work: Callable[[], Any], repeats: int) -> list[float]:
    """What the device spends on it, by events around it; it sleeps first, so that one launch does not count."""
    for _ in range(_WARMUP):
        work()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_SLEEP_CYCLES)
        began.record()
        work()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended))
    return times


def torch_alone(tensors: list[torch.Tensor]) -> list[Any]:
    return [
        (x.norm(), *torch.var_mean(x), *torch.aminmax(x), x.count_nonzero(), x.isnan().sum(), x.isinf().sum())
        for x in tensors
    ]


def with_items(tensors: list[torch.Tensor]) -> list[Any]:
    return [[one.item() for one in row[:7]] for row in torch_alone(tensors)]


def error_of(device: DeviceStatistics, tensors: list[torch.Tensor]) -> float:
    """The largest difference between the statistics and those of float64 on the CPU, over the largest element."""
    some = tensors[:36]
    late = device.start(some)
    torch.cuda.synchronize()
    late.read()
    wanted = statistics_of([tensor.cpu().double() for tensor in some])
    scale = np.maximum(np.abs(wanted[3]), np.abs(wanted[4]))
    differences = np.abs(late.table - wanted)
    differences[0] /= np.sqrt([tensor.numel() for tensor in some])
    return float((differences / scale).max())


if __name__ == "__main__":
    main()
