"""In a fresh process: a live run with many rows of `layers`; told to grow, it goes on at 5,000 rows a second."""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path

from benchmarks.child import job_of_child, leave_result
from benchmarks.made_run import MadeRun

_VECTOR = 200
_ROWS_PER_DRAIN = 20_000
_GROWTH_PER_S = 5_000


def main() -> None:
    path, job = job_of_child()
    run = MadeRun(Path(job["run"]))
    write = run.layer_writer(_VECTOR)
    start = time.perf_counter()
    for _ in range(job["rows"] // _ROWS_PER_DRAIN):
        write(_ROWS_PER_DRAIN)
        run.drain()
    leave_result(path, {"build_s": time.perf_counter() - start, "files": len(run.collector.sealed)})
    if not sys.stdin.readline():  # "grow", or the end
        return
    while not select.select([sys.stdin], [], [], 0.5)[0]:
        write(_GROWTH_PER_S // 2)
        run.drain()


if __name__ == "__main__":
    main()
