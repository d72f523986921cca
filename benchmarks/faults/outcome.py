"""What came of a case: who was accused, by us and by the baselines."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.faults.kept import Job, Kept, kept_for
from stethos.diagnose.federated.verdict import IN_COMPANY, SURE, verdicts_on

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
    accused: list[str]
    suspected: dict[str, tuple[str, float, int]]  # kind, probability, rounds; accused or not, from UNSURE on
    baselines: dict[str, bool]
    weakest_flip: float
    localise_ms: float  # of CPU time: the benchmark keeps all cores busy

    @property
    def is_exact(self) -> bool:
        return set(self.accused) == set(self.truth)


def outcome_of(job: Job) -> Outcome:
    return judged(kept_for(job))


def judged(kept: Kept) -> Outcome:
    times = []
    for _ in range(2):
        start = time.process_time()
        verdicts = verdicts_on(kept.cohort, SURE, IN_COMPANY)
        times.append((time.process_time() - start) * 1e3)
    suspected = {
        one.client: (one.kind, one.probability, (one.last or kept.rounds) - one.first + 1)
        for one in (*verdicts_on(kept.cohort, UNSURE), *verdicts)
    }
    return Outcome(
        data=kept.data,
        clients=kept.clients,
        rounds=kept.rounds,
        split=kept.split,
        fault=kept.fault,
        seed=kept.seed,
        truth=kept.truth,
        accused=[one.client for one in verdicts],
        suspected=suspected,
        baselines=kept.baselines,
        weakest_flip=min(kept.flips.values(), default=1.0),
        localise_ms=min(times),
    )
