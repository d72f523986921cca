"""Many programs as processes of one run: each is forked from a process that has torch already.

python -m benchmarks.wildtraining.forked FILE: jobs as JSON, names and variants; their pids are put into the same file.
Importing torch takes most of the time of so small a program. What is recorded is the same.
"""

from __future__ import annotations

import io
import json
import os
import sys
import zlib
from pathlib import Path

import sklearn.datasets  # noqa: F401 - here, not in each child
import torch
import torch._dynamo

from benchmarks.wildtraining.table import CASES

_AT_ONCE = 3


def main(path: Path) -> None:
    jobs = json.loads(path.read_text(encoding="utf-8"))
    pids: dict[int, list[str]] = {}
    for place, (name, variant) in enumerate(jobs):
        if place >= _AT_ONCE:
            os.wait()
        child = os.fork()
        if not child:
            sys.stdout = io.StringIO()
            torch.manual_seed(zlib.crc32(f"{name}-{variant}".encode()) % 1000)
            CASES[name].program(variant == "bug")
            sys.exit(0)  # the usual way out, so that the recording ends as in any program
        pids[child] = [name, variant]
    for _ in range(min(_AT_ONCE, len(jobs))):
        os.wait()
    path.write_text(json.dumps(pids), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
