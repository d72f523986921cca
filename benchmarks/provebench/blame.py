"""Provenance in TraceFL's setting: one client of ten with flipped labels, and who is blamed for the wrong answers."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.faults.case import Case
from benchmarks.provebench.memory import played
from stethos.lab.replay import LabTrainer
from stethos.lab.split import Dirichlet
from stethos.replay.history import recorded_rounds
from stethos.replay.provenance import provenance_of

DATA, MODELS, ALPHAS = ("mnist", "fashion-mnist"), ("mlp", "cnn"), (0.3, 0.7, 1.0)
_MOST_INPUTS = 10
_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Blamed:
    """One federation: the inputs it gets wrong because of the flip, and of how many the guilty one is named.

    `due` counts those that the same federation without the fault gets right; `all_inputs` every one that is called the
    flipped class.
    """

    data: str
    model: str
    alpha: float
    seed: int
    due: int
    due_right: int
    all_inputs: int
    all_right: int
    input_ms: float


Setting = tuple[str, str, float, int]


def settings(seeds: range) -> list[Setting]:
    return [(data, model, alpha, seed) for seed in seeds for data in DATA for model in MODELS for alpha in ALPHAS]


def blamed(setting: Setting) -> Blamed:
    """Play the federation with and without the flip; ask who is responsible for the wrong answers."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data, model, alpha, seed = setting
    guilty = int(np.random.default_rng([seed, 93]).integers(10))
    case = Case(data, 10, Dirichlet(alpha), (("label-flip", guilty, None),), seed, _ROUNDS)
    memory, result, choices = played(case, model=model)
    trainer = LabTrainer(memory, choices, is_fast=True)
    fault = result.faults[0]
    assert fault.target is not None
    x, y = trainer.test_x, trainer.test_y
    wrong = (y == fault.source) & (trainer.scores(result.state, x).argmax(1) == fault.target)
    if not bool(wrong.any()):
        return Blamed(data, model, alpha, seed, 0, 0, 0, 0, 0.0)
    _, clean, _ = played(replace(case, faults=()), model=model)
    is_due = trainer.scores(clean.state, x).argmax(1) == y
    recorded = recorded_rounds(memory)
    right, due, times = [], [], []
    for place in torch.nonzero(wrong).flatten().tolist()[:_MOST_INPUTS]:
        start = time.perf_counter()
        found = provenance_of(trainer, recorded, x[place : place + 1], fault.target)
        times.append(1e3 * (time.perf_counter() - start))
        right.append(found.shares[0].client == f"c{guilty}")
        due.append(bool(is_due[place]))
    of_due = [hit for hit, one in zip(right, due, strict=True) if one]
    return Blamed(
        data, model, alpha, seed, len(of_due), sum(of_due), len(right), sum(right), float(np.median(times or [0]))
    )
