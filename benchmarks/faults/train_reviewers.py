"""Train the judge's reviewers on federations of the lab, once the first networks are there (`train_judge`).

python -m benchmarks.faults.train_reviewers --keep DIR [--limit-s S] [--processes N]
python -m benchmarks.faults.train_reviewers --from DIR --write src/stethos/diagnose/federated/judge.json

Data sets: digits, breast cancer, Fashion-MNIST and Gaussian blobs, never MNIST. Half of the federations are hard ones
(seeds from 30,000: as large as the benchmark's, often with several faulty clients, backdoors and weak faults more
often than others, four in ten with faults that begin later), the others those of `train_judge` with seeds that the
first networks have not seen. Each is looked at whole, from its beginning to some round, and from some round to its end.
The figures printed are those of reviewers that did not see one federation in five, on these; what is written has seen
all. The shipped reviewers learnt from 904 federations, two in three of them hard (in those below 30,256 faults begin
later more seldom).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.faults.case import Case, is_here
from benchmarks.faults.design import SPLITS
from benchmarks.faults.kept import Job, Kept, kept_for, read_kept
from benchmarks.faults.train_judge import KINDS, case_of
from benchmarks.report import say
from stethos.diagnose.federated.judge import Judge, judge_in, opinions_on, signal_of
from stethos.diagnose.federated.verdict import certain_on

HARD, OTHERS = 30_000, (8_000, 27_000, 47_000)  # first seeds
_FAULTS = {
    "label-flip": 3.0, "label-noise": 3.0, "feature-noise": 4.0, "backdoor": 6.0, "sign-flip": 1.5, "scaling": 1.5,
    "update-noise": 2.0, "free-rider-delta": 1.0, "stale": 1.5,
}  # fmt: skip
_SPLITS = tuple(list(SPLITS.values())[place] for place in (0, 1, 2, 3, 3, 4, 4))  # skew is what is hard
_HIDDEN, _EPOCHS, _BATCH, _MEMBERS, _DROPPED, _DECAY = 64, 30, 512, 4, 0.2, 0.1
_SET_ASIDE = 5
_FEWEST_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Look:
    """A stretch of a federation: what the reviewers see, and the number of the true kind, per client.

    `is_clear` where it can be told at all; `is_whole` for all rounds of the federation.
    """

    seed: int
    signal: NDArray[np.float64]
    kinds: NDArray[np.int64]
    is_clear: NDArray[np.bool_]
    is_whole: bool


def hard_case_of(seed: int) -> Case:
    """A federation like those of the benchmark, with what is hard about them more often."""
    chance = np.random.default_rng([seed, 77])
    data = str(chance.choice(["digits", "fashion-mnist", "breast-cancer"], p=[0.4, 0.4, 0.2]))
    clients = 10 if data == "breast-cancer" else int(chance.choice([10, 30, 50], p=[0.45, 0.4, 0.15]))
    split = _SPLITS[int(chance.integers(len(_SPLITS)))]
    counts = [count for count in (0, 0, 1, 1, 1, 2, 2, 3, 3, 5, 7) if count <= int(0.3 * clients)]
    count = int(chance.choice(counts))
    kinds, weights = list(_FAULTS), np.array(list(_FAULTS.values()))
    common = str(chance.choice(kinds, p=weights / weights.sum())) if chance.random() < 0.75 else ""
    faults = []
    for client in chance.choice(clients, count, replace=False):
        kind = common or str(chance.choice(kinds, p=weights / weights.sum()))
        faults.append((kind, int(client), float(chance.choice([1.0, 0.4])) if kind == "label-noise" else None))
    rounds, samples = int(chance.choice([8, 12, 12, 12])), int(chance.choice([150, 300, 300]))
    start = int(chance.integers(3, rounds - 3)) if chance.random() < 0.4 else 1
    return Case(data, clients, split, tuple(faults), seed, rounds, samples, start=start)


def looks_at(kept: Kept, judge: Judge) -> list[Look]:
    """The federation whole, its beginning, and its end."""
    chance, count = np.random.default_rng([kept.seed, 5]), len(kept.cohort)
    stretches = [(0, count)]
    if count > 5:
        stretches += [(0, int(chance.integers(3, count))), (int(chance.integers(1, count - 4)), count)]
    return [_look(kept, judge, *stretch) for stretch in stretches]


def _look(kept: Kept, judge: Judge, start: int, stop: int) -> Look:
    cohort = kept.cohort.part(slice(start, stop))
    is_certain = np.isin(cohort.clients, [verdict.client for verdict in certain_on(cohort)])
    least = 0.2 if "0.3" in kept.split else 0.05
    faulty_rounds = max(stop - max(start, kept.start - 1), 0)
    truth = [kept.truth.get(client) if faulty_rounds else None for client in cohort.clients]
    enough = min(_FEWEST_ROUNDS, stop - start)
    is_clear = [
        (kind is None or faulty_rounds >= enough) and kept.flips.get(client, 1.0) >= least
        for client, kind in zip(cohort.clients, truth, strict=True)
    ]
    return Look(
        kept.seed,
        signal_of(cohort, *opinions_on(cohort, judge, is_certain)),
        np.array([KINDS.index(kind) if kind in KINDS else 0 for kind in truth]),
        np.array(is_clear) & ~is_certain & (np.isfinite(cohort.norm).sum(0) >= enough),
        (start, stop) == (0, len(kept.cohort)),
    )


def trained(looks: list[Look], seed: int) -> list[Any]:
    """Fit one network; return its layers as the package stores them."""
    torch.manual_seed(seed)
    signal = torch.tensor(np.concatenate([one.signal[one.is_clear] for one in looks]), dtype=torch.float32)
    kinds = torch.tensor(np.concatenate([one.kinds[one.is_clear] for one in looks]))
    weight = torch.cat([torch.full((int(one.is_clear.sum()),), 1.0 if one.is_whole else 0.5) for one in looks])
    net = nn.Sequential(
        nn.Linear(signal.shape[1], _HIDDEN), nn.ReLU(), nn.Dropout(_DROPPED), nn.Linear(_HIDDEN, len(KINDS))
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=_EPOCHS * -(-len(signal) // _BATCH))
    for _ in range(_EPOCHS):
        for batch in torch.randperm(len(signal)).split(_BATCH):
            losses = nn.functional.cross_entropy(net(signal[batch]), kinds[batch], reduction="none")
            optimizer.zero_grad()
            ((losses * weight[batch]).sum() / weight[batch].sum()).backward()
            optimizer.step()
            schedule.step()
    return [
        [[[_short(value) for value in row] for row in layer.weight.tolist()], [_short(v) for v in layer.bias.tolist()]]
        for layer in net
        if isinstance(layer, nn.Linear)
    ]


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def tell(value: dict[str, Any], looks: list[Look]) -> None:
    """Say how good the reviewers are on whole federations."""
    judge = judge_in(value)
    whole = [(one, 1 - judge.reviewed(one.signal)[:, 0]) for one in looks if one.is_whole]
    for limit in (0.6, 0.7, 0.8, 0.85, 0.9):
        right: dict[str, list[bool]] = {"clean": [], "one faulty": [], "several": []}
        for one, sure in whole:
            wrong = ((sure >= limit) != (one.kinds > 0)) & one.is_clear
            count = int((one.kinds > 0).sum())
            right["clean" if not count else "one faulty" if count == 1 else "several"].append(not wrong.any())
        text = ", ".join(f"{name} {100 * float(np.mean(list_)):.1f} % of {len(list_)}" for name, list_ in right.items())
        say(f"exact at {limit:g}: {text}")


def jobs_of(directory: Path, runs: int) -> list[Job]:
    directory.mkdir(parents=True, exist_ok=True)
    listed = []
    for number in range(runs):
        listed += [hard_case_of(HARD + 3 * number + more) for more in range(3)]
        listed += [case_of(first + number) for first in OTHERS]
    return [Job(case, directory / f"{case.seed}.npz") for case in listed if is_here(case)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.train_reviewers")
    parser.add_argument("--runs", type=int, default=300, help="six federations each")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="stop playing federations after this")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="play the federations, and keep them there")
    parser.add_argument("--from", type=Path, metavar="DIR", dest="source", help="train on federations kept there")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the judge to which the reviewers are added")
    arguments = parser.parse_args()
    if arguments.keep:
        _play(jobs_of(arguments.keep, arguments.runs), arguments.processes, arguments.limit_s)
    if arguments.source and arguments.write:
        value = json.loads(arguments.write.read_text(encoding="utf-8"))
        judge = judge_in(value)
        paths = sorted(arguments.source.glob("[0-9]*[0-9].npz"))
        looks = [look for path in paths for look in looks_at(read_kept(path), judge)]
        say(f"{len(paths)} federations, {len(looks)} looks")
        aside = [one for one in looks if one.seed % _SET_ASIDE == 0]
        rest = [one for one in looks if one.seed % _SET_ASIDE != 0]
        tell(value | {"reviewers": [trained(rest, seed) for seed in range(_MEMBERS)]}, aside)
        value["reviewers"] = [trained(looks, seed) for seed in range(_MEMBERS)]
        arguments.write.write_text(json.dumps(value), encoding="utf-8")


def _play(jobs: list[Job], processes: int, limit_s: float) -> None:
    start = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for done, _ in enumerate(pool.imap_unordered(_played, jobs), start=1):
            if done % 100 == 0:
                say(f"{done} of {len(jobs)} federations")
            if time.monotonic() - start > limit_s:
                pool.terminate()
                break


def _played(job: Job) -> int:
    return kept_for(job).seed


if __name__ == "__main__":
    main()
