"""Which federations the fourth set has: seeds from `FIRST` on, 110 of them.

Of each twenty, eight are clean, nine have one faulty client and three have two; one clean federation in three has an
honest client that is unlike the others. Faults take turns, so that each occurs twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.wild.fourth.families import FOURTH
from benchmarks.wild.fourth.fault import can_have
from benchmarks.wild.fourth.split import ONE_UNLIKE
from benchmarks.wild.play import Case

FIRST, LAST = 40_000, 40_110
REGRESSIONS = ("series", "counts", "values")
FAULTY = (0, 1, 1, 0, 1, 2, 0, 1, 1, 0, 1, 0, 2, 1, 0, 1, 0, 2, 1, 0)  # clients, in one federation after the other
_CLIENTS = (5, 6, 7, 8, 8, 9, 10, 10, 12, 14, 16, 20, 24, 30)
_MOST = {"penguins": 7, "water": 12}  # clients; these have few rows


def case_of(seed: int) -> Case:
    """The federation of a seed."""
    draw = np.random.default_rng([404, seed])

    def one(options: Any) -> Any:
        return options[int(draw.integers(len(options)))]

    cycle, place = divmod(seed - FIRST, len(FAULTY))
    faulty = FAULTY[place]
    before = sum((count > 0) == (faulty > 0) for count in FAULTY[:place])  # of its kind, in this cycle
    rank = cycle * sum((count > 0) == (faulty > 0) for count in FAULTY) + before
    order = np.random.default_rng(405).permutation(len(FOURTH.faults))
    fault = FOURTH.faults[order[rank % len(order)]] if faulty else None
    has_unlike = not faulty and rank % 3 == 1

    choices = [
        (data, model, algorithm)
        for data, task in FOURTH.data.items()
        for model in FOURTH.models[task]
        for algorithm in FOURTH.algorithms
        if can_have(fault, task, data, model, algorithm) and _fits(model, algorithm)
    ]
    data = one(sorted({data for data, _, _ in choices}))
    model = one(sorted({model for name, model, _ in choices if name == data}))
    algorithm = one([algorithm for *names, algorithm in choices if names == [data, model]])
    task = FOURTH.data[data]
    split = ONE_UNLIKE[rank // 3 % len(ONE_UNLIKE)] if has_unlike else one(FOURTH.splits[:5])
    if (split == "gain" and task == "text") or (split == "rare-alone" and task in REGRESSIONS):
        split = "own-mix"
    clients = min(max(one(_CLIENTS), 5 + faulty), _MOST.get(data, 30))
    if algorithm in ("dropouts", "clustered"):
        clients = min(max(clients, 8), _MOST.get(data, 30))
    rounds = int(draw.integers(6, 13 if clients < 16 else 9))
    return Case(data, model, algorithm, split, fault, faulty, clients, rounds, seed)


def _fits(model: str, algorithm: str) -> bool:
    return not (model == "random-features" and algorithm == "alternating")  # it has one trained layer
