"""What came of a case: who was accused, by us and by the baselines."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.faults.baseline import BASELINES
from benchmarks.faults.case import Case, play
from benchmarks.faults.design import KIND_OF
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


def outcome_of(case: Case) -> Outcome:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    played = play(case)
    times = []
    for _ in range(2):
        start = time.perf_counter()
        verdicts = verdicts_on(played.cohort, UNSURE)
        times.append((time.perf_counter() - start) * 1e3)
    truth = {fault.names[0]: KIND_OF[fault.kind] for fault in played.result.faults}
    last = case.rounds
    return Outcome(
        data=case.data if isinstance(case.data, str) else case.data.name,
        clients=case.clients,
        rounds=case.rounds,
        split=str(case.split),
        fault=" ".join(dict.fromkeys(f"{kind} {strength or ''}".strip() for kind, _, strength in case.faults))
        or "none",
        seed=case.seed,
        truth=truth,
        accused={one.client: (one.kind, one.probability, (one.last or last) - one.first + 1) for one in verdicts},
        baselines={name: find(played, len(truth)) == set(truth) for name, find in BASELINES.items()} if truth else {},
        weakest_flip=min((played.flip_share(client) for client in truth), default=1.0),
        localise_ms=min(times),
    )
