"""Who is faulty, told from sums over groups alone: `make groupbench`. A table for docs/benchmarks.md.

Clients reveal nothing of their own, as under secure aggregation: in each round the server sees sums of sketches and of
three traits over random groups of 4, 6 or 8. NaN, infinities and updates that are no updates are not tried: a client
reports those itself, as they cannot be masked.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np

from stethos.diagnose.federated.group_test import THRESHOLD, GroupVerdict, decode
from stethos.federate.group_sums import TRAITS
from stethos.lab.fault import Fault
from stethos.lab.federation import federate
from stethos.lab.group_sums import GroupedExchange

KINDS = ("label-flip", "label-noise", "feature-noise", "feature-shift", "sign-flip", "scaling", "update-noise",
         "free-rider-zero", "free-rider-delta")  # fmt: skip


def played(
    clients: int, size: int, kind: str | None, seed: int, rounds: int, split: str
) -> tuple[GroupVerdict, int | None]:
    chance = np.random.default_rng(seed)
    faulty = int(chance.integers(clients)) if kind else None
    faults = [Fault(kind, faulty)] if kind and faulty is not None else []
    seen = GroupedExchange(clients, size, seed)
    federate("digits", clients=clients, rounds=rounds, split=split, faults=faults, seed=seed, engine="stacked",
             observe=False, each_round=seen)  # fmt: skip
    return decode(seen.federation.rounds, clients, TRAITS), faulty


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=700_000)
    parser.add_argument("--clean", type=int, default=10, help="clean federations for each size and number of clients")
    parser.add_argument("--faulty", type=int, default=2, help="federations for each of those and each kind of fault")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--splits", default="iid,dirichlet")
    parser.add_argument("--sizes", default="15:4,30:4,30:6,60:8", help="clients and size of groups")
    given = parser.parse_args()
    began = time.monotonic()
    rows, by_kind = [], defaultdict(list)
    for split in given.splits.split(","):
        for clients, size in (map(int, pair.split(":")) for pair in given.sizes.split(",")):
            seed, right, wrong, tries, false, tops = given.seed, 0, 0, 0, 0, []
            for _ in range(given.clean):
                seed += 1
                verdict, _ = played(clients, size, None, seed, given.rounds, split)
                tops.append(verdict.scores.max())
                false += verdict.client is not None
            for kind in KINDS:
                for _ in range(given.faulty):
                    seed += 1
                    verdict, faulty = played(clients, size, kind, seed, given.rounds, split)
                    tries += 1
                    right += verdict.client == faulty
                    wrong += verdict.client not in (None, faulty)
                    by_kind[kind].append(verdict.client == faulty)
            rows.append((split, clients, size, tries, right, wrong, given.clean, false, max(tops)))
            print(rows[-1], f"{time.monotonic() - began:.0f} s", flush=True)
    print("| split | clients | groups of | one faulty | named | somebody else named | clean | accused |")
    print("|---|---|---|---|---|---|---|---|")
    for split, clients, size, tries, right, wrong, clean, false, _ in rows:
        print(f"| {split} | {clients} | {size} | {tries} | {right} | {wrong} | {clean} | {false} |")
    print({kind: f"{sum(ones)}/{len(ones)}" for kind, ones in by_kind.items()}, f"threshold {THRESHOLD}")


if __name__ == "__main__":
    main()
