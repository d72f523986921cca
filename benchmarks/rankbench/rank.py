"""One rank of a job: torchrun ... benchmarks/rankbench/rank.py NAME faulty|healthy."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from benchmarks.rankbench.table import KINDS

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    KINDS[sys.argv[1]].job(sys.argv[2] == "faulty").run()
    dist.destroy_process_group()
