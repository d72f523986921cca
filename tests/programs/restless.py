"""Writes runs as fast as it can until stdin ends: restless.py DIRECTORY

Run `sealed` gets rows that are sealed, and retired as at a size limit; of `found-1`, `found-2`, ... each gets its first
findings. Every line it prints is the number of the last of those.
"""

from __future__ import annotations

import select
import sys
import time
from itertools import count
from pathlib import Path

from builders import RunBuilder

from stethos.store.findings import keep_findings

KEPT = 6

directory = Path(sys.argv[1])
with RunBuilder(directory / "sealed") as run:
    processes = [run.process(f"p{number}") for number in range(2)]
    for turn in count(1):
        for process in processes:
            process.steps(5)
            process.metric("turn", turn)
            process.layers(["first", "second"], step=turn)
            process.seal()
            for file in process.collector.sealed[: -3 * KEPT]:
                process.collector.retire(file)
        found = directory / f"found-{turn}"
        found.mkdir()
        print(turn, flush=True)
        keep_findings(found, {}, [], time.time_ns())
        if select.select([sys.stdin], [], [], 0)[0]:
            break
