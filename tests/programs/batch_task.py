"""One task of a batch job that only says which one it is, and waits: batch_task.py DIRECTORY. It needs no torch."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import stethos


def wait_for_end(directory: Path) -> None:
    stethos.log(task=int(os.environ["SLURM_PROCID"]))  # here, so that whoever sees it finds us in here
    while not (directory / "end").exists():
        time.sleep(0.05)


wait_for_end(Path(sys.argv[1]))
