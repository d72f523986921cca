"""Which cases the fault benchmark runs: a fixed sample of the grid, the same every time."""

from __future__ import annotations

import numpy as np

from benchmarks.faults.case import Case
from stethos.lab.split import IID, Dirichlet, QuantitySkew, Split

SPLITS: dict[str, Split] = {
    "IID": IID(),
    "Dirichlet 1.0": Dirichlet(1.0),
    "Dirichlet 0.7": Dirichlet(0.7),
    "Dirichlet 0.3": Dirichlet(0.3),
    "quantity skew": QuantitySkew(),
}
# As issue and docs fix them: kind of the lab, strength (None: the lab's own).
FAULTS: dict[str, tuple[str, float | None]] = {
    "label flip": ("label-flip", None),
    "label noise 1.0": ("label-noise", 1.0),
    "label noise 0.4": ("label-noise", 0.4),
    "feature noise": ("feature-noise", 1.0),
    "sign flip": ("sign-flip", 1.0),
    "scaling x10": ("scaling", 10.0),
    "update noise": ("update-noise", 1.0),
    "NaN": ("nan", None),
    "free rider, zero": ("free-rider-zero", None),
    "free rider, delta": ("free-rider-delta", None),
    "stale by 3": ("stale", 3.0),
    "backdoor": ("backdoor", 0.2),
}
KIND_OF = {
    "label-flip": "label-flip", "label-noise": "label-noise", "feature-noise": "feature-fault",
    "feature-shift": "feature-fault", "sign-flip": "sign-flip",
    "scaling": "scaling", "update-noise": "update-noise", "nan": "nan", "free-rider-zero": "free-rider",
    "free-rider-delta": "free-rider", "stale": "stale", "backdoor": "backdoor",
}  # fmt: skip
SEEDS = range(600_000, 600_010)  # never used for tuning, nor in an earlier report
_DATA = (("digits", (10, 30)), ("breast-cancer", (10,)), ("mnist", (10, 30, 50)))
_MOST = 0.3


def cases(*, is_full: bool) -> list[Case]:
    """All cases; quick: one or two seeds of each cell and two kinds, full: ten seeds and more kinds."""
    chance = np.random.default_rng(2026)
    found: list[Case] = []
    for data, sizes in _DATA:
        for clients in sizes:
            for split in SPLITS.values():
                found += _cell(data, clients, split, chance, is_full=is_full)
    found += _large(chance, is_full=is_full)
    return found


def _cell(data: str, clients: int, split: Split, chance: np.random.Generator, *, is_full: bool) -> list[Case]:
    is_large = data == "mnist" and clients >= 30
    seeds = list(SEEDS) if is_full else list(SEEDS)[: 1 if is_large else 2]
    found = []
    for seed in seeds:
        found.append(Case(data, clients, split, (), seed))
        kinds = list(FAULTS)
        chosen = (
            kinds if is_full and not is_large else chance.choice(kinds, 4 if is_full else 2, replace=False).tolist()
        )
        found += [_case(data, clients, split, seed, [kind], chance) for kind in chosen]
        for count in (2, 3, 5, 7):
            if count <= _MOST * clients and (is_full or count in (2, 5)):
                kind = str(chance.choice(kinds))
                found.append(_case(data, clients, split, seed, [kind] * count, chance))
    return found


def _large(chance: np.random.Generator, *, is_full: bool) -> list[Case]:
    """400 clients of MNIST, two of them faulty."""
    seeds = list(SEEDS)[: 10 if is_full else 2]
    return [
        _case("mnist", 400, SPLITS["IID"], seed, [str(chance.choice(list(FAULTS)))] * 2, chance, samples=145, rounds=8)
        for seed in seeds
    ]


def _case(
    data: str, clients: int, split: Split, seed: int, kinds: list[str], chance: np.random.Generator, samples: int = 300,
    rounds: int = 12,
) -> Case:  # fmt: skip
    bad = chance.choice(clients, len(kinds), replace=False)
    faults = tuple((FAULTS[kind][0], int(client), FAULTS[kind][1]) for kind, client in zip(kinds, bad, strict=True))
    return Case(data, clients, split, faults, seed, rounds, samples)
