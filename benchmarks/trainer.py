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
    training.train(job["warmup"], note)
    me = psutil.Process()
    wall_us, cpu_us, rss_bytes = [], [], []
    for _ in range(job["chunks"]):
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        training.train(job["steps"], note)
        wall_us.append((time.perf_counter_ns() - wall) / job["steps"] / 1e3)
        cpu_us.append((time.process_time_ns() - cpu) / job["steps"] / 1e3)
        rss_bytes.append(me.memory_info().rss)
    leave_result(path, {"wall_us": wall_us, "cpu_us": cpu_us, "rss_bytes": rss_bytes})


if __name__ == "__main__":
    main()
