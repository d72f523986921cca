"""What is left of a federation once it has been played: enough to judge it again, without training anything."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.faults.baseline import BASELINES
from benchmarks.faults.case import Case, play
from benchmarks.faults.design import KIND_OF
from stethos.diagnose.federated.cohort import Cohort


@dataclass(frozen=True, eq=False)
class Kept:
    """A case as the server saw it (`cohort`), the truth, and what the baselines made of it.

    `flips` are the shares of the faulty clients' data that a label flip concerns, 1 for other faults.
    """

    data: str
    clients: int
    rounds: int
    split: str
    fault: str
    seed: int
    start: int
    truth: dict[str, str]
    flips: dict[str, float]
    baselines: dict[str, bool]
    cohort: Cohort


_FACTS = tuple(name for name in Kept.__dataclass_fields__ if name != "cohort")


@dataclass(frozen=True, slots=True)
class Job:
    """A case to play, and the file in which it is kept, if any; without a case, one that has been played before."""

    case: Case | None
    path: Path | None


def kept_for(job: Job) -> Kept:
    """Read what has been played, play what has not, and keep it if there is a file for it."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if job.path is not None and job.path.exists():
        return read_kept(job.path)
    assert job.case is not None
    kept = kept_of(job.case)
    if job.path is not None:
        write_kept(kept, job.path)
    return kept


def kept_of(case: Case) -> Kept:
    """Play a case."""
    played = play(case)
    truth = {fault.names[0]: KIND_OF[fault.kind] for fault in played.result.faults}
    named = dict.fromkeys(f"{kind} {strength or ''}".strip() for kind, _, strength in case.faults)
    return Kept(
        data=case.data_name,
        clients=case.clients,
        rounds=case.rounds,
        split=str(case.split),
        fault=" ".join(named) or "none",
        seed=case.seed,
        start=case.start,
        truth=truth,
        flips={client: played.flip_share(client) for client in truth},
        baselines={name: find(played, len(truth)) == set(truth) for name, find in BASELINES.items()} if truth else {},
        cohort=played.cohort,
    )


def write_kept(kept: Kept, path: Path) -> None:
    """Into a file of its own; a file that is there is whole."""
    facts: dict[str, Any] = {name: getattr(kept, name) for name in _FACTS}
    facts |= {"round_numbers": kept.cohort.rounds, "client_names": kept.cohort.clients}
    matrices = {name: matrix.astype(np.float32) for name, matrix in kept.cohort.values.items()}
    begun = path.with_suffix(".begun.npz")
    np.savez_compressed(begun, facts=np.array(json.dumps(facts)), **matrices)
    begun.replace(path)


def read_kept(path: Path) -> Kept:
    with np.load(path, allow_pickle=False) as held:
        facts = json.loads(str(held["facts"]))
        matrices = {name: held[name].astype(float) for name in held.files if name != "facts"}
    rounds, clients = tuple(facts.pop("round_numbers")), tuple(facts.pop("client_names"))
    return Kept(cohort=Cohort(rounds, clients, matrices), **facts)
