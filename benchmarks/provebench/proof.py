"""Verdicts of proofs where the truth is known: the guilty, somebody who is not, and somebody where nobody is."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.faults.case import Case
from benchmarks.faults.design import FAULTS, SPLITS
from benchmarks.provebench.memory import Memory, played
from stethos.lab.replay import LabTrainer
from stethos.replay.counterfactual import trained_again
from stethos.replay.effect import Flags, difference, noise_of
from stethos.replay.history import recorded_rounds
from stethos.replay.proof import Accusation, Retraining, prove_by_aggregation, prove_by_training
from stethos.replay.trainer import right_answers

_DATA = (("digits", 10), ("digits", 30), ("breast-cancer", 10), ("mnist", 10))
_SEEDS_OF_TRUTH = (101, 102, 103)
Played = tuple[Memory, LabTrainer]


@dataclass(frozen=True, slots=True)
class Told:
    """What came of one accusation, by training again and by aggregating again; the interval is the first one's."""

    verdict: str
    fast_verdict: str
    fast_s: float
    excess: tuple[float, float, float]
    margin: float
    repetitions: int


@dataclass(frozen=True, slots=True)
class Tried:
    """One federation: whether the fault matters, and what proofs said; "" where it does not and none was made."""

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
    excess: tuple[float, float, float] = (0.0, 0.0, 0.0)
    innocent_excess: tuple[float, float, float] = (0.0, 0.0, 0.0)
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class Cleared:
    """One federation without a fault, and what proofs said about a client that was accused at random."""

    data: str
    split: str
    verdict: str
    fast_verdict: str
    seed: int
    excess: tuple[float, float, float] = (0.0, 0.0, 0.0)


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
    _prepare()
    case, fault, split = case_of(seed)
    memory, _, choices = played(case)
    clean_memory, _, clean_choices = played(replace(case, faults=()))
    trainer, clean = LabTrainer(memory, choices, is_fast=True), LabTrainer(clean_memory, clean_choices, is_fast=True)
    guilty = tuple(f"c{client}" for _, client, _ in case.faults)
    before, after = right_answers(clean, clean_memory.last), right_answers(trainer, memory.last)
    effect, is_large = float(before.mean() - after.mean()), False
    if effect > noise_of([before]) / 4:  # else it is not looked at any closer
        effect, is_large = _truth((memory, trainer), (clean_memory, clean), case.rounds)
    if not is_large:
        return Tried(case.data_name, fault, split, len(guilty), effect, False, "", "", "", "", 0.0, seed)
    innocent = str(np.random.default_rng([seed, 92]).choice([one for one in memory.clients(1) if one not in guilty]))
    bad, good = (
        _told(trainer, memory, accusation, case.rounds)
        for accusation in (Accusation(guilty), Accusation((innocent,), others=guilty))
    )
    return Tried(
        case.data_name, fault, split, len(guilty), effect, True, bad.verdict, good.verdict, bad.fast_verdict,
        good.fast_verdict, max(bad.fast_s, good.fast_s), seed, bad.excess, good.excess, bad.margin,
    )  # fmt: skip


def cleared(seed: int) -> Cleared:
    """Play a federation without a fault; accuse one of its clients."""
    _prepare()
    case, _, split = case_of(seed)
    case = replace(case, faults=())
    memory, _, choices = played(case)
    accused = str(np.random.default_rng([seed, 94]).choice(memory.clients(1)))
    told = _told(LabTrainer(memory, choices, is_fast=True), memory, Accusation((accused,)), case.rounds)
    return Cleared(case.data_name, split, told.verdict, told.fast_verdict, seed, told.excess)


def _prepare() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")


def _told(trainer: LabTrainer, memory: Memory, accusation: Accusation, rounds: int) -> Told:
    recorded = recorded_rounds(memory)
    weights = {name: float(memory.update(1, name).samples or 1) for name in memory.clients(1)}
    start = time.perf_counter()
    fast = prove_by_aggregation(trainer, recorded, accusation)
    fast_s = time.perf_counter() - start
    proof = prove_by_training(memory, trainer, accusation, Retraining(1, rounds), weights=weights)
    excess = proof.excess.mean, proof.excess.low, proof.excess.high
    return Told(proof.verdict, fast.verdict, fast_s, excess, proof.margin, proof.repetitions)


def _truth(played: Played, clean: Played, rounds: int) -> tuple[float, bool]:
    """What the fault costs, over orders of the samples that no proof uses; large if beyond two standard errors."""

    def answers(memory: Memory, trainer: LabTrainer) -> list[Flags]:
        made = [trained_again(memory, trainer, 1, rounds, seed=seed) for seed in _SEEDS_OF_TRUTH]
        return [right_answers(trainer, state) for state in made]

    before, after = answers(*clean), answers(*played)
    cost = difference([good.astype(float) - bad.astype(float) for good, bad in zip(before, after, strict=True)])
    return cost.mean, cost.mean > noise_of(before)
