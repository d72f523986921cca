"""What is left of a federation once it has been played: enough to judge it again, without training anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.baseline import BASELINES
from benchmarks.faults.case import Case, play
from benchmarks.faults.design import KIND_OF
from stethos.diagnose.federated.cohort import MATRICES, Cohort


@dataclass(frozen=True, eq=False)
class Kept:
    """A case as the server saw it (`cohort`), the truth, and what the baselines made of it."""

    data: str
    clients: int
    rounds: int
    split: str
    fault: str
    seed: int
    truth: dict[str, str]
    baselines: dict[str, bool]
    weakest_flip: float
    cohort: Cohort


_FACTS = tuple(name for name in Kept.__dataclass_fields__ if name != "cohort")


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
        truth=truth,
        baselines={name: find(played, len(truth)) == set(truth) for name, find in BASELINES.items()} if truth else {},
        weakest_flip=min((played.flip_share(client) for client in truth), default=1.0),
        cohort=played.cohort,
    )


def write_kept(kept: Kept, path: Path) -> None:
    """Into a file of its own; a file that is there is whole."""
    facts: dict[str, Any] = {name: getattr(kept, name) for name in _FACTS}
    facts |= {"round_numbers": kept.cohort.rounds, "client_names": kept.cohort.clients}
    matrices = {name: getattr(kept.cohort, name).astype(np.float32) for name in MATRICES}
    begun = path.with_suffix(".begun.npz")
    np.savez_compressed(begun, facts=np.array(json.dumps(facts)), **matrices)
    begun.replace(path)


def read_kept(path: Path) -> Kept:
    with np.load(path, allow_pickle=False) as held:
        facts = json.loads(str(held["facts"]))
        matrices = {name: held[name].astype(float) for name in MATRICES}
    rounds, clients = tuple(facts.pop("round_numbers")), tuple(facts.pop("client_names"))
    return Kept(cohort=Cohort(rounds=rounds, clients=clients, **matrices), **facts)
