"""In a fresh process: train bare or observed, and say what every chunk of steps took."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import torch

from benchmarks.child import job_of_child, leave_result
from benchmarks.variant import VARIANTS
from benchmarks.workload import WORKLOADS


def main() -> None:
    path, job = job_of_child()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    training = WORKLOADS[job["workload"]]()
    note = VARIANTS[job["variant"]].begin(training, Path(job["directory"]))
    start = time.monotonic()
    while training.steps_done < job["warmup"] and time.monotonic() - start < job["limit_s"]:
        training.train(max(1, job["warmup"] // 20), note)
    me = psutil.Process()
    wall_us, cpu_us, rss_bytes, mapped_bytes = [], [], [], []
    for _ in range(job["chunks"]):
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        training.train(job["steps"], note)
        wall_us.append((time.perf_counter_ns() - wall) / job["steps"] / 1e3)
        cpu_us.append((time.process_time_ns() - cpu) / job["steps"] / 1e3)
        memory = me.memory_info()
        rss_bytes.append(memory.rss)
        mapped_bytes.append(memory.shared)
        if time.monotonic() - start > job["limit_s"]:  # an instrumentation that is very slow is measured shorter
            break
    result = {"wall_us": wall_us, "cpu_us": cpu_us, "rss_bytes": rss_bytes, "mapped_bytes": mapped_bytes}
    leave_result(path, result)


if __name__ == "__main__":
    main()
