"""In a fresh process: record trainings of the benchmark, one run each."""

from __future__ import annotations

import time
from pathlib import Path

import torch

import stethos
from benchmarks.child import job_of_child, leave_result
from benchmarks.trainbench.bench import train_of


def main() -> None:
    path, job = job_of_child()
    torch.set_num_threads(1)
    took = {}
    for number, name in enumerate(job["cases"]):
        start = time.monotonic()
        torch.manual_seed(job["seed"])
        directory = Path(job["directory"])
        with stethos.watch(name=f"{job['seed']}-{job['first'] + number}", dir=directory, preset=job["preset"],
                           overhead=job["overhead"]) as watch:  # fmt: skip
            train_of(name)()
        took[name] = {"path": str(watch.path), "train_s": round(time.monotonic() - start, 2)}
    leave_result(path, {"runs": took})


if __name__ == "__main__":
    main()
