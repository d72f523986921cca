"""Which federations the fifth set has: seeds from `FIRST` on, 130 of them.

Of each twenty, eight are clean, nine have one faulty client and three have two. Every second clean federation, and one
in eight of the others, has an honest client that is unlike the rest. Faults take turns, so that each occurs twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.wild.fifth.families import FIFTH
from benchmarks.wild.fifth.fault import can_have
from benchmarks.wild.fifth.split import ONE_UNLIKE
from benchmarks.wild.fourth.draw import FAULTY, REGRESSIONS
from benchmarks.wild.play import Case

FIRST, LAST = 50_000, 50_130
PHONES = 30
_MOST = {"vowels": 7, "power": 12}  # clients; these have few rows


def case_of(seed: int) -> Case:
    """The federation of a seed."""
    draw = np.random.default_rng([505, seed])

    def one(options: Any) -> Any:
        return options[int(draw.integers(len(options)))]

    cycle, place = divmod(seed - FIRST, len(FAULTY))
    faulty = FAULTY[place]
    before = sum((count > 0) == (faulty > 0) for count in FAULTY[:place])  # of its kind, in this cycle
    rank = cycle * sum((count > 0) == (faulty > 0) for count in FAULTY) + before
    order = np.random.default_rng(506).permutation(len(FIFTH.faults))
    fault = FIFTH.faults[order[rank % len(order)]] if faulty else None
    has_unlike = rank % 8 == 3 if faulty else rank % 2 == 1
    split = ONE_UNLIKE[rank // (8 if faulty else 2) % len(ONE_UNLIKE)] if has_unlike else one(FIFTH.splits[:6])

    choices = [
        (data, model, algorithm)
        for data, task in FIFTH.data.items()
        for model in FIFTH.models[task]
        for algorithm in FIFTH.algorithms
        if can_have(fault, task, data, algorithm) and _fits(data, algorithm, split, faulty)
    ]
    data = one(sorted({data for data, _, _ in choices}))
    model = one(sorted({model for name, model, _ in choices if name == data}))
    algorithm = one([algorithm for *names, algorithm in choices if names == [data, model]])
    clients = min(int(draw.integers(6 + faulty, 17)), _MOST.get(data, 16))
    if algorithm in ("day-and-night", "joining"):
        clients = max(clients, 9)
    rounds = int(draw.integers(8, 12 if FIFTH.data[data] in ("images", "text") else 16))
    if algorithm == "phones":
        clients, rounds = PHONES, int(draw.integers(12, 16))
    return Case(data, model, algorithm, split, fault, faulty, clients, rounds, seed)


def _fits(data: str, algorithm: str, split: str, faulty: int) -> bool:
    task = FIFTH.data[data]
    if data in _MOST and (algorithm in ("phones", "day-and-night", "joining") or faulty > 1):
        return False
    if algorithm == "prior-adjusted" and task in REGRESSIONS:
        return False
    if "mixup" in algorithm and task == "text":
        return False
    if split in ("newcomer", "every-third") and algorithm in ("phones", "day-and-night", "joining"):
        return False
    if split in ("small-batches", "whole-batch") and algorithm == "fixed-steps":
        return False
    return not (split == "augmenter" and task == "text")
