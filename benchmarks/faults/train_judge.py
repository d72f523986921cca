"""Train the judge of faulty clients on federations of the lab, and write it into the package.

python -m benchmarks.faults.train_judge [--runs N] [--limit-s S] [--processes N] [--keep DIR]
python -m benchmarks.faults.train_judge --from DIR [DIR ...] --write src/stethos/diagnose/federated/judge.json

Data sets: digits, breast cancer, Fashion-MNIST and Gaussian blobs, never MNIST. Three designs: a wide one (seeds from
1,000: many models, rates, strategies), one near the benchmark's (seeds from 20,000), and a far one (seeds from
40,000: partial participation, Adam, medians, up to five local epochs). One federation in five is set aside; the
figures printed are theirs. About ten minutes on 16 cores.

The shipped judge learnt from 5,281 federations of the three designs, and from 6,973 played by an earlier version, whose
examples lack the newest traits (`tail`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.faults.case import Case, is_here, play
from benchmarks.faults.design import KIND_OF
from benchmarks.faults.made import made_from
from benchmarks.report import say
from stethos.diagnose.federated.judge import HONEST, judge_in
from stethos.diagnose.federated.trait import Signals, Traits
from stethos.lab.data import Data
from stethos.lab.split import IID, Dirichlet, QuantitySkew, Split

WIDE, NEAR, FAR = 1_000, 20_000, 40_000  # first seeds
KINDS = (
    "honest", "label-flip", "label-noise", "feature-fault", "backdoor", "sign-flip", "scaling", "update-noise",
    "free-rider", "stale",
)  # fmt: skip
_FAULTS = (
    "label-flip", "label-noise", "feature-noise", "feature-shift", "backdoor", "sign-flip", "scaling", "update-noise",
    "free-rider-delta", "stale",
)  # fmt: skip
_SPLITS: tuple[Split, ...] = (
    IID(), Dirichlet(1.0), Dirichlet(0.7), Dirichlet(0.3), Dirichlet(0.3), QuantitySkew(),
)  # fmt: skip
# Traits that may be missing together: a loop that reports no answers, no losses, or has no first matrix.
_TOGETHER = (
    (("error", "error_z", "cell", "cell_z", "second", "row", "row_rest", "focus", "spread", "bias"), 0.12),
    (("entry", "entry_z", "gain", "gain_z", "fall", "entry_range"), 0.10),
    (("inputs", "inputs_z", "focus_input", "focus_input_z", "tail", "tail_z"), 0.10),
)
_HIDDEN, _EPOCHS, _BATCH, _MEMBERS = 96, 20, 2048, 3
_SET_ASIDE = 5
_PER_FILE = 1_500
_CLIP = 6.0


@dataclass(frozen=True, eq=False)
class Examples:
    """Traits of the clients of some federations over some stretches of rounds, with the truth."""

    names: tuple[str, ...]
    traits: NDArray[np.float32]
    kinds: NDArray[np.int64]
    seeds: NDArray[np.int64]
    rounds: NDArray[np.int64]
    is_fair: NDArray[np.bool_]


def case_of(seed: int) -> Case:
    """The federation of a seed."""
    chance = np.random.default_rng([seed, 77])
    if NEAR <= seed < FAR and chance.random() < 0.75:
        data: str | Data = str(chance.choice(["digits", "digits", "fashion-mnist", "fashion-mnist", "breast-cancer"]))
        clients = 10 if data == "breast-cancer" else int(chance.choice([10, 30, 50]))
        rounds = int(chance.choice([8, 10, 12, 12]))
        kinds = [kind for kind in _FAULTS if kind != "feature-shift"]
        options: dict[str, Any] = {"local_epochs": 2, "batch": 32, "lr": 0.1}
        share_same = 0.7
    else:
        data = str(chance.choice(["digits", "digits", "breast-cancer", "blobs", "fashion-mnist", "fashion-mnist"]))
        clients = int(chance.choice([6, 10, 10, 15, 20, 30, 50]))
        clients = min(clients, 15) if data == "breast-cancer" else clients
        rounds = int(chance.integers(5, 13))
        kinds = list(_FAULTS)
        options = {
            "lr": float(chance.choice([0.05, 0.1, 0.2, 0.3])),
            "local_epochs": int(chance.choice([1, 1, 2, 3])),
            "batch": int(chance.choice([16, 32, 64])),
            "model": str(chance.choice(["mlp", "mlp", "logistic"])),
            "strategy": str(chance.choice(["fedavg", "fedavg", "fedavg", "fedprox", "fedadam"])),
        }
        if seed >= FAR:
            options |= _far_options(chance, clients)
            rounds = int(chance.integers(6, 16))
        share_same = 0.5
    split = _SPLITS[int(chance.integers(len(_SPLITS)))]
    count = min(int(chance.choice([0, 0, 1, 1, 1, 2, 3, 5, 7])), int(0.3 * clients))
    common = str(chance.choice(kinds)) if chance.random() < share_same else ""
    faults = []
    for client in chance.choice(clients, count, replace=False):
        kind = common or str(chance.choice(kinds))
        faults.append((kind, int(client), float(chance.choice([1.0, 0.4])) if kind == "label-noise" else None))
    samples = int(chance.integers(100, 500))
    return Case(blobs(seed) if data == "blobs" else data, clients, split, tuple(faults), seed, rounds, samples, options)


def _far_options(chance: np.random.Generator, clients: int) -> dict[str, Any]:
    optimizer = str(chance.choice(["sgd", "adam", "adam"]))
    participation = float(chance.choice([1.0, 1.0, 0.5, 0.3, 0.7]))
    return {
        "optimizer": optimizer,
        "lr": float(chance.choice([0.003, 0.01, 0.03, 0.1] if optimizer == "adam" else [0.05, 0.1, 0.2])),
        "local_epochs": int(chance.choice([1, 2, 3, 5])),
        "strategy": str(chance.choice(["fedavg", "fedavg", "median", "trimmed-mean", "fedadam", "fedprox"])),
        "participation": participation if clients * participation >= 6 else 1.0,
    }


def blobs(seed: int) -> Data:
    """Gaussian clouds, one per class."""
    chance = np.random.default_rng(seed)
    classes, width, count = int(chance.integers(3, 12)), int(chance.integers(8, 80)), 3000
    centres = chance.normal(size=(classes, width)) * chance.uniform(0.6, 1.6)
    y = chance.integers(0, classes, count)
    return Data.of((centres[y] + chance.normal(size=(count, width))).astype(np.float32), y, name="blobs")


def examples_of(seed: int) -> Examples:
    """Play a seed's federation; its clients over all rounds after the second, the last four, and a random stretch."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    played = play(case_of(seed))
    cohort, count = played.cohort, len(played.cohort)
    truth = {fault.names[0]: KIND_OF[fault.kind] for fault in played.result.faults}
    kinds = [KINDS.index(truth.get(client, HONEST)) for client in cohort.clients]
    least = 0.2 if played.case.split == Dirichlet(0.3) else 0.05
    fair = [played.flip_share(client) >= least for client in cohort.clients]
    chance = np.random.default_rng([seed, 78])
    first = int(chance.integers(0, count))
    stretches = {
        (min(2, count - 1), count),
        (max(0, count - 4), count),
        (first, int(chance.integers(first + 1, count + 1))),
    }
    values = [Signals(cohort.part(slice(*stretch))).over(0, stretch[1] - stretch[0]) for stretch in sorted(stretches)]
    times = len(values)
    return Examples(
        values[0].names,
        np.concatenate([one.values for one in values]).astype(np.float32),
        np.array(kinds * times),
        np.full(len(kinds) * times, seed),
        np.repeat([stop - start if start else 0 for start, stop in sorted(stretches)], len(kinds)),
        np.array(fair * times),
    )


def joined(parts: list[Examples]) -> Examples:
    names = ("traits", "kinds", "seeds", "rounds", "is_fair")
    return Examples(parts[0].names, *(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def kept(examples: Examples, directory: Path, number: int) -> None:
    """Write examples to a file of their own."""
    values = {name: getattr(examples, name) for name in ("kinds", "seeds", "rounds", "is_fair")}
    traits = np.clip(examples.traits, -6e4, 6e4).astype(np.float16)
    np.savez_compressed(directory / f"examples-{number}.npz", names=np.array(examples.names), traits=traits, **values)


def kept_in(directories: list[Path]) -> Examples:
    """The examples of some directories. A trait that some did not have yet is unknown there."""
    parts = []
    for path in sorted(path for directory in directories for path in directory.glob("examples-*.npz")):
        with np.load(path, allow_pickle=False) as held:
            parts.append({name: held[name] for name in held.files})
    names = tuple(str(name) for name in max((part["names"] for part in parts), key=len))
    for part in parts:
        here = [str(name) for name in part["names"]]
        blank = np.full(len(part["kinds"]), np.nan, np.float16)
        part["traits"] = np.column_stack([part["traits"][:, here.index(n)] if n in here else blank for n in names])
    return joined([
        Examples(names, p["traits"].astype(np.float32), p["kinds"], p["seeds"], p["rounds"], p["is_fair"])
        for p in parts
    ])  # fmt: skip


def judged_by(examples: Examples) -> dict[str, Any]:
    """Fit the members; return the judge as the package stores it, and say how good it is on what was set aside."""
    members = [trained(examples, seed) for seed in range(_MEMBERS)]
    value: dict[str, Any] = {"kinds": list(KINDS), "names": list(examples.names), "members": members}
    value["made"] = made_from(examples.seeds, examples.traits, examples.kinds)
    aside = (examples.seeds % _SET_ASIDE == 0) & examples.is_fair & (examples.rounds > 3)
    traits = Traits(examples.names, examples.traits[aside].astype(float), np.zeros((int(aside.sum()), 2), np.int64))
    shares, kinds, seeds = judge_in(value).probabilities(traits), examples.kinds[aside], examples.seeds[aside]
    say(f"set aside: {100 * float((shares.argmax(1) == kinds).mean()):.2f} % of {len(kinds)} clients named right")
    for limit in (0.7, 0.8, 0.9, 0.95):
        wrong = ((1 - shares[:, 0]) >= limit) != (kinds != 0)
        exact = {seed: not wrong[seeds == seed].any() for seed in np.unique(seeds).tolist()}
        count = {seed: int((kinds[seeds == seed] != 0).sum()) for seed in exact}
        groups = {"clean": [s for s in exact if not count[s]], "faulty": [s for s in exact if count[s]]}
        text = ", ".join(
            f"{name} {design} {100 * float(np.mean([exact[s] for s in chosen if s // FAR == d])):.1f} %"
            for name, chosen in groups.items()
            for d, design in enumerate(("wide and near", "far"))
        )
        say(f"exact at {limit:g}: {text}")
    return value


def trained(examples: Examples, seed: int) -> dict[str, Any]:
    """Fit one network; return it as the package stores it."""
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    is_known = ~np.isnan(examples.traits)
    is_training = (examples.seeds % _SET_ASIDE != 0) & examples.is_fair & (examples.rounds > 0)
    middle = np.nanmedian(examples.traits[examples.seeds % _SET_ASIDE != 0], axis=0)
    low, high = np.nanquantile(examples.traits, [0.05, 0.95], axis=0)
    scale = np.maximum(high - low, 1e-2) / 2
    scaled = np.clip((np.where(is_known, examples.traits, middle) - middle) / scale, -_CLIP, _CLIP)
    signal = torch.tensor(np.concatenate([scaled, ~is_known], axis=1).astype(np.float32), device=device)
    kinds = torch.tensor(examples.kinds, device=device)
    weight = torch.tensor(np.where(examples.rounds < 2, 0.3, 1.0).astype(np.float32), device=device)
    width = len(examples.names)
    net = nn.Sequential(
        nn.Linear(2 * width, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, len(KINDS))
    ).to(device)
    chosen = torch.tensor(np.flatnonzero(is_training), device=device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    steps = _EPOCHS * -(-len(chosen) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    groups = [(torch.tensor([examples.names.index(n) for n in names], device=device), p) for names, p in _TOGETHER]
    for _ in range(_EPOCHS):
        for batch in chosen[torch.randperm(len(chosen), device=device)].split(_BATCH):
            x = signal[batch].clone()
            for columns, chance in groups:
                rows = (torch.rand(len(x), device=device) < chance).nonzero()
                x[rows, columns], x[rows, columns + width] = 0.0, 1.0
            x[:, :width] += 0.02 * torch.randn_like(x[:, :width])
            losses = nn.functional.cross_entropy(net(x), kinds[batch], reduction="none") * weight[batch]
            optimizer.zero_grad()
            (losses.sum() / weight[batch].sum()).backward()
            optimizer.step()
            schedule.step()
    return {
        "middle": _short(middle),
        "scale": _short(scale),
        "layers": [
            [[_short(row) for row in layer.weight.tolist()], _short(layer.bias.tolist())]
            for layer in net
            if isinstance(layer, nn.Linear)
        ],
    }


def _short(values: Any) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.train_judge")
    parser.add_argument("--runs", type=int, default=6_400, help="federations of each design")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="stop playing federations after this")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the examples there, and train nothing")
    parser.add_argument("--from", type=Path, nargs="+", metavar="DIR", dest="sources", help="train on kept examples")
    parser.add_argument("--write", type=Path, help="where the judge goes")
    arguments = parser.parse_args()
    if arguments.sources:
        examples = kept_in(arguments.sources)
    else:
        examples = _played(arguments.runs, arguments.limit_s, arguments.processes, arguments.keep)
    if arguments.keep:
        return
    judge = judged_by(examples)
    if arguments.write:
        arguments.write.write_text(json.dumps(judge), encoding="utf-8")


def _played(runs: int, limit_s: float, processes: int, keep: Path | None) -> Examples:
    asked = [first + number for number in range(runs) for first in (WIDE, NEAR, FAR)]
    seeds = [seed for seed in asked if is_here(case_of(seed))]
    if len(seeds) < len(asked):
        say(f"{len(asked) - len(seeds)} of {len(asked)} federations are left out: their data are not on this machine")
    parts: list[Examples] = []
    start, written = time.monotonic(), 0
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for part in pool.imap_unordered(_examples, seeds, chunksize=4):
            parts.append(part)
            if len(parts) % 200 == 0:
                say(f"{len(parts)} of {len(seeds)} federations")
            is_over = time.monotonic() - start > limit_s or len(parts) == len(seeds)
            if keep and (is_over or len(parts) - written >= _PER_FILE):
                kept(joined(parts[written:]), keep, written // _PER_FILE)
                written = len(parts)
            if is_over:
                pool.terminate()
                break
    return joined(parts)


def _examples(seed: int) -> Examples:
    from benchmarks.faults.train_judge import examples_of as by_name  # not the class of `__main__`, to be pickled

    return by_name(seed)


if __name__ == "__main__":
    from benchmarks.faults.train_judge import main as main_by_name

    main_by_name()
