"""In a fresh process: an observed training that notes what every few steps of it took, for whoever watches it.

The notes are in a mapped file, (end, wall, CPU) in ns per step by turns, as a ring.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import torch

import stethos
from benchmarks.child import job_of_child, leave_result
from benchmarks.workload import WORKLOADS

NOTES = 1 << 14
FIELDS = 3
STEPS = 10
_WARM_UP = 200


def main() -> None:
    path, job = job_of_child()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    training = WORKLOADS[job["workload"]]()
    stethos.watch(training.model, name=job["name"], dir=Path(job["runs"]))
    notes_path = Path(job["notes"])
    notes_path.write_bytes(bytes(NOTES * FIELDS * 8))
    with notes_path.open("r+b") as file:
        notes = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
    training.train(_WARM_UP, None)
    leave_result(path, {"pid": os.getpid()})
    index = 0
    while True:
        wall, cpu = time.monotonic_ns(), time.process_time_ns()
        training.train(STEPS, None)
        now = time.monotonic_ns()
        at = index % NOTES * FIELDS
        notes[at], notes[at + 1], notes[at + 2] = now, (now - wall) // STEPS, (time.process_time_ns() - cpu) // STEPS
        index += 1


if __name__ == "__main__":
    main()
