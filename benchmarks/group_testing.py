"""Who is faulty, told from sums over groups alone: `make groupbench`. A table for docs/benchmarks/collecting.md.

Clients reveal nothing of their own, as under secure aggregation: in each round the server sees sums of what clients
find out about themselves over random groups of 4, 6 and 8. NaN, infinities and updates that are no updates are not
tried: a client reports those itself, as they cannot be masked.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np

from stethos.diagnose.federated.group_test import decode
from stethos.federate.own_traits import TRAITS
from stethos.lab.fault import Fault
from stethos.lab.federation import federate
from stethos.lab.group_sums import GroupedExchange
from stethos.lab.result import Exchange

KINDS = ("label-flip", "label-noise", "feature-noise", "feature-shift", "sign-flip", "scaling", "update-noise",
         "free-rider-zero", "free-rider-delta")  # fmt: skip
SIZES = (4, 6, 8)


class _SeveralSizes:
    """The same federation seen through groups of several sizes."""

    def __init__(self, clients: int, seed: int) -> None:
        self.seen = {size: GroupedExchange(clients, size, seed) for size in SIZES}

    def __call__(self, exchange: Exchange) -> None:
        for one in self.seen.values():
            one(exchange)


def played(clients: int, kind: str | None, seed: int, rounds: int, split: str) -> list[dict[str, Any]]:
    chance = np.random.default_rng(seed)
    faulty = int(chance.integers(clients)) if kind else None
    faults = [Fault(kind, faulty)] if kind and faulty is not None else []
    several = _SeveralSizes(clients, seed)
    federate("digits", clients=clients, rounds=rounds, split=split, faults=faults, seed=seed, engine="stacked",
             observe=False, each_round=several)  # fmt: skip
    found = []
    for size, one in several.seen.items():
        began = time.perf_counter()
        verdict = decode(one.federation.rounds, clients, TRAITS)
        found.append({"split": split, "clients": clients, "size": size, "kind": kind, "faulty": faulty, "seed": seed,
                      "named": verdict.client, "trait": verdict.trait, "score": round(float(verdict.scores.max()), 3),
                      "ms": round((time.perf_counter() - began) * 1e3, 1)})  # fmt: skip
    return found


def _all(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Play what is not in the file yet, a line for each group size."""
    rows = [json.loads(line) for line in given.keep.read_text().splitlines()] if given.keep.exists() else []
    known = {(one["split"], one["clients"], one["kind"], one["seed"]) for one in rows}
    until = time.monotonic() + given.limit_s
    jobs = []
    for split in given.splits.split(","):
        for clients in map(int, given.clients.split(",")):
            kinds = [(kind, 1000 * place + n) for place, kind in enumerate(KINDS) for n in range(given.faulty)]
            kinds += [(None, 50_000 + n) for n in range(given.clean)]
            jobs += [(clients, kind, given.seed + number, split) for kind, number in kinds]
    for place in np.random.default_rng(0).permutation(len(jobs)):  # so that a part of them is one of each
        clients, kind, seed, split = jobs[place]
        if (split, clients, kind, seed) in known or time.monotonic() > until:
            continue
        found = played(clients, kind, seed, given.rounds, split)
        rows += found
        given.keep.parent.mkdir(parents=True, exist_ok=True)
        with given.keep.open("a") as file:
            file.writelines(json.dumps(one) + "\n" for one in found)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=700_000)
    parser.add_argument("--clean", type=int, default=10, help="clean federations for each split and number of clients")
    parser.add_argument("--faulty", type=int, default=2, help="federations for each of those and each kind of fault")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--splits", default="iid,dirichlet")
    parser.add_argument("--clients", default="15,30,60")
    parser.add_argument("--keep", type=Path, default=Path("build/groups.jsonl"), help="what was played before, and is")
    parser.add_argument("--limit-s", type=float, default=1e9, help="stop playing after this; run it again to go on")
    rows = _all(parser.parse_args())
    cells: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for one in rows:
        cells[one["split"], one["clients"], one["size"]].append(one)
    print("| split | clients | groups of | one faulty | named | somebody else named | clean | accused |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for (split, clients, size), mine in sorted(cells.items()):
        print(f"| {split} | {clients} | {size} | " + " | ".join(map(str, _counts(mine))) + " |")
    print("| all | | | " + " | ".join(map(str, _counts(rows))) + " |")
    by_kind = defaultdict(list)
    for one in rows:
        by_kind[one["kind"]].append(one["named"] == one["faulty"])
    print({kind: f"{sum(ones)} of {len(ones)}" for kind, ones in by_kind.items() if kind})
    print(f"decoding: {np.median([one['ms'] for one in rows]):.0f} ms in the middle")


def _counts(rows: list[dict[str, Any]]) -> tuple[int, int, int, int, int]:
    faulty, clean = [one for one in rows if one["kind"]], [one for one in rows if not one["kind"]]
    return (
        len(faulty), sum(one["named"] == one["faulty"] for one in faulty),
        sum(one["named"] not in (None, one["faulty"]) for one in faulty),
        len(clean), sum(one["named"] is not None for one in clean),
    )  # fmt: skip


if __name__ == "__main__":
    main()
