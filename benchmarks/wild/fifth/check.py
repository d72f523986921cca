"""Plays the fifth set without Stethos: does the training learn, and does each fault change what a client does?

python -m benchmarks.wild.fifth.check list                 the federations, and how many there are of each kind
python -m benchmarks.wild.fifth.check learn 50000 50130    of clean twins: loss of a constant answer, before and after
python -m benchmarks.wild.fifth.check faults [NAME ...]    how far each fault moves an update, as a share of its norm
"""

from __future__ import annotations

import sys

from benchmarks.wild.fifth.draw import FIRST, LAST, case_of
from benchmarks.wild.fifth.families import FIFTH
from benchmarks.wild.fifth.loop import Loop
from benchmarks.wild.fourth.check import check

if __name__ == "__main__":
    sys.exit(check([case_of(seed) for seed in range(FIRST, LAST)], FIFTH.faults, Loop))
