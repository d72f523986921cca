"""One training program: python -m benchmarks.wildtraining.program NAME bug|fixed [SEED]."""

from __future__ import annotations

import sys

import torch

from benchmarks.wildtraining.table import BLIND, CASES, SECOND

if __name__ == "__main__":
    name, variant, seed = (*sys.argv[1:], "0")[:3]
    torch.manual_seed(int(seed))
    (CASES | BLIND | SECOND)[name].program(variant == "bug")
