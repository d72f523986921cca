"""Verdicts of proofs where the truth is known: the guilty, and somebody who is not."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.faults.case import Case
from benchmarks.faults.design import FAULTS, SPLITS
from benchmarks.provebench.memory import played
from stethos.lab.counterfactual import LabWorld
from stethos.replay.effect import Flags, difference, noise_of
from stethos.replay.past import turnouts_of
from stethos.replay.proof import Accusation, Proof, Retraining, prove_by_aggregation, prove_by_training

_DATA = (("digits", 10), ("digits", 30), ("breast-cancer", 10), ("mnist", 10))
_SEEDS_OF_TRUTH = (101, 102, 103)


@dataclass(frozen=True, slots=True)
class Tried:
    """One federation: whether the fault matters, and what proofs said."""

    data: str
    fault: str
    split: str
    guilty: int
    effect: float
    is_large: bool
    verdict: str
    innocent_verdict: str
    fast_verdict: str
    innocent_fast_verdict: str
    fast_s: float
    seed: int


def case_of(seed: int) -> tuple[Case, str, str]:
    """The federation of a seed, its fault and its split."""
    chance = np.random.default_rng([seed, 91])
    data, clients = _DATA[int(chance.integers(len(_DATA)))]
    split, fault = str(chance.choice(list(SPLITS))), str(chance.choice(list(FAULTS)))
    bad = chance.choice(clients, int(chance.choice([1, 1, 2, 3])), replace=False)
    kind, strength = FAULTS[fault]
    faults = tuple((kind, int(client), strength) for client in bad)
    return Case(data, clients, SPLITS[split], faults, seed), fault, split


def tried(seed: int) -> Tried:
    """Play the federation; accuse its guilty clients together, and an innocent one."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    case, fault, split = case_of(seed)
    memory, _, choices = played(case)
    clean_memory, _, clean_choices = played(replace(case, faults=()))
    world, clean = LabWorld(memory, choices), LabWorld(clean_memory, clean_choices)
    effect, is_large = _truth(world, clean, case.rounds)
    guilty = tuple(f"c{client}" for _, client, _ in case.faults)
    if not is_large:
        return Tried(case.data_name, fault, split, len(guilty), effect, False, "", "", "", "", 0.0, seed)
    innocent = str(np.random.default_rng([seed, 92]).choice([one for one in memory.clients(1) if one not in guilty]))
    verdicts, fast, fast_s = [], [], 0.0
    turnouts = turnouts_of(memory)
    weights = {name: float(memory.update(1, name).samples or 1) for name in memory.clients(1)}
    for accusation in (Accusation(guilty), Accusation((innocent,), others=guilty)):
        start = time.perf_counter()
        fast.append(prove_by_aggregation(world, turnouts, accusation).verdict)
        fast_s = max(fast_s, time.perf_counter() - start)
        proof: Proof | None = prove_by_training(world, weights, accusation, Retraining(1, case.rounds))
        assert proof is not None
        verdicts.append(proof.verdict)
    return Tried(case.data_name, fault, split, len(guilty), effect, True, *verdicts, *fast, fast_s, seed)


def _truth(world: LabWorld, clean: LabWorld, rounds: int) -> tuple[float, bool]:
    """What the fault costs, over orders of the samples that no proof uses; large if beyond two standard errors."""

    def answers(one: LabWorld) -> list[Flags]:
        return [one.right(one.trained(1, rounds, frozenset(), seed, lambda number: None)) for seed in _SEEDS_OF_TRUTH]

    before, after = answers(clean), answers(world)
    cost = difference([good.astype(float) - bad.astype(float) for good, bad in zip(before, after, strict=True)])
    return cost.mean, cost.mean > noise_of(before)
