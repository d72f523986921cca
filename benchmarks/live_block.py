"""In a fresh process: a training, or one rank of a job, that runs a block when told to and says how long it took.

Blocks are asked for by a line on stdin, so that several of these processes can be measured by turns while the others
sleep. The wall time and the thread's processor time of a call, or step, of block N are in the file N of the job's
directory.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.child import job_of_child, leave_result
from benchmarks.workload import WORKLOADS


def main() -> None:
    path, job = job_of_child()
    torch.set_num_threads(1)
    if job["runs"]:
        import stethos

        stethos.watch(name=job["name"], dir=Path(job["runs"]), overhead=0.0)
    run = _collective(job["rank"], job["rendezvous"]) if job["rendezvous"] else _steps()
    run(job["count"])
    leave_result(path, {})
    for number, _ in enumerate(sys.stdin):
        start, worked = time.perf_counter_ns(), time.thread_time_ns()
        run(job["count"])
        spent_us = [
            (time.perf_counter_ns() - start) / job["count"] / 1e3,
            (time.thread_time_ns() - worked) / job["count"] / 1e3,
        ]
        place = Path(job["directory"]) / str(number)
        place.with_suffix(".part").write_text(json.dumps(spent_us), encoding="utf-8")
        place.with_suffix(".part").replace(place)


def _steps() -> Callable[[int], None]:
    training = WORKLOADS["mlp"]()
    return lambda count: training.train(count, None)


def _collective(rank: int, rendezvous: str) -> Callable[[int], None]:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    values = torch.ones(1024)

    def run(count: int) -> None:
        for _ in range(count):
            dist.all_reduce(values)

    return run


if __name__ == "__main__":
    main()
