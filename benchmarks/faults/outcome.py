"""What came of a case: who was accused, by us and by the baselines."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.faults.case import Case
from benchmarks.faults.kept import Kept, kept_of, read_kept, write_kept
from stethos.diagnose.federated.verdict import verdicts_on

UNSURE = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case."""

    data: str
    clients: int
    rounds: int
    split: str
    fault: str
    seed: int
    truth: dict[str, str]
    accused: dict[str, tuple[str, float, int]]  # kind, probability, rounds it was accused of
    baselines: dict[str, bool]
    weakest_flip: float
    localise_ms: float

    def is_exact(self, threshold: float) -> bool:
        return {client for client, (_, sure, _) in self.accused.items() if sure >= threshold} == set(self.truth)


@dataclass(frozen=True, slots=True)
class Job:
    """A case to play, and the file in which it is kept, if any; without a case, one that has been played before."""

    case: Case | None
    path: Path | None


def outcome_of(job: Job) -> Outcome:
    """Play what has not been played yet, keep it if there is a file for it, and judge it."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if job.path is not None and job.path.exists():
        return judged(read_kept(job.path))
    assert job.case is not None
    kept = kept_of(job.case)
    if job.path is not None:
        write_kept(kept, job.path)
    return judged(kept)


def judged(kept: Kept) -> Outcome:
    times = []
    for _ in range(2):
        start = time.perf_counter()
        verdicts = verdicts_on(kept.cohort, UNSURE)
        times.append((time.perf_counter() - start) * 1e3)
    accused = {one.client: (one.kind, one.probability, (one.last or kept.rounds) - one.first + 1) for one in verdicts}
    return Outcome(
        data=kept.data,
        clients=kept.clients,
        rounds=kept.rounds,
        split=kept.split,
        fault=kept.fault,
        seed=kept.seed,
        truth=kept.truth,
        accused=accused,
        baselines=kept.baselines,
        weakest_flip=kept.weakest_flip,
        localise_ms=min(times),
    )
