"""Whether a sample was among a client's data, guessed from the rows that leave it at each level: a table for the docs.

    python -m benchmarks.membership [--trials 300] [--seed 1]

A sample of one client, and another one of the same label that nobody has, are shown to an attacker, who says which of
them was trained on. Two attackers read exactly what the filter lets through:

- One *who knows all else* has every other sample, the order of the batches and all random numbers, and plays the
  federation with either of the two: nobody can do better. What he reads is one round of the client, or all of them.
- One *with data of the same kind* has the global models: of the two samples he takes the one whose loss goes up and
  down from round to round as the client's numbers do, beside what is usual of such data. Without rows he takes the one
  with the smaller loss in the end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import numpy.typing as npt

from benchmarks.faults.__main__ import wilson
from benchmarks.faults.case import Case, play
from benchmarks.privacy import EveryLevel
from stethos.collect.policy import LEVELS, Level
from stethos.lab.data import Data, load
from stethos.lab.split import IID

Vector = npt.NDArray[np.float64]
Rows = list[Mapping[str, Any]]  # of one client, by round
_CLIENTS, _ROUNDS = 10, 12


def trial(seed: int) -> list[dict[str, Any]]:
    """One federation in two worlds: with a sample, and with another in its place."""
    chance = np.random.default_rng([seed, 0xB])
    data = load("digits", seed=seed)
    place = int(chance.integers(len(data.train_y)))
    same = np.flatnonzero((data.test_y == data.train_y[place]).numpy())
    outside = int(chance.choice(same))
    swapped_x, held_x = data.train_x.clone(), data.test_x.clone()
    swapped_x[place], held_x[outside] = data.test_x[outside], data.train_x[place]
    worlds = [world(data, seed), world(replace(data, train_x=swapped_x, test_x=held_x), seed)]
    holder = _holder(worlds)
    truth = int(chance.integers(2))
    found: list[dict[str, Any]] = []
    for level in LEVELS:
        seen, expected = _rows(worlds[truth], level, holder), [_rows(one, _plain(level), holder) for one in worlds]
        for what, rounds in (("one round", 1), ("all rounds", _ROUNDS)):
            guess = _closer(seen[:rounds], [one[:rounds] for one in expected], level, chance)
            found.append({"level": level, "who": f"knows all else, {what}", "right": guess == truth})
    pair = data.train_x[place], data.test_x[outside]
    losses = _losses_of(worlds[truth], pair, int(data.train_y[place]))
    usual = _usual(worlds[truth], data)
    mine = truth  # of the pair, which was trained on
    found.append({"level": "no rows", "who": "has data of the same kind", "right": int(losses[:, -1].argmin()) == mine})
    for level in LEVELS:
        guess = _alike(_rows(worlds[truth], level, holder), losses, usual, chance)
        found.append({"level": level, "who": "has data of the same kind", "right": guess == mine})
    return found


def _plain(level: Level) -> Level:
    """What the attacker expects: at L3 the numbers before the noise."""
    return "L4" if level == "L3" else level


def world(data: Data, seed: int) -> EveryLevel:
    every = EveryLevel(Case(data, _CLIENTS, IID(), (), seed, _ROUNDS), data.classes)
    play(Case(data, _CLIENTS, IID(), (), seed, _ROUNDS), every)
    return every


def _holder(worlds: list[EveryLevel]) -> str:
    """The client whose first turn differs: the others have the same data and the same model in it."""
    first, second = (one.left["L4"][0] for one in worlds)
    different = [name for name in first if first[name] != second[name]]
    return different[0] if different else next(iter(first))


def _rows(every: EveryLevel, level: Level, client: str) -> Rows:
    return [one.get(client, {}) for one in every.left[level]]


def _closer(seen: Rows, expected: list[Rows], level: Level, chance: np.random.Generator) -> int:
    """Which of two worlds the rows are of; by lot where they are as far from both."""
    far = [_distance(seen, one, level) for one in expected]
    return int(chance.integers(2)) if far[0] == far[1] else int(np.argmin(far))


def _distance(seen: Rows, expected: Rows, level: Level) -> float:
    total = 0.0
    for mine, theirs in zip(seen, expected, strict=True):
        for name, value in mine.items():
            if name == "confusion":
                total += _matrix_distance(value, theirs[name])
            elif level == "L3" and name == "samples":
                continue
            else:
                total += (float(value) - float(theirs[name])) ** 2 * (_precision(mine) if name == "accuracy" else 1.0)
    return total


def _precision(row: Mapping[str, Any]) -> float:
    """How much a share weighs beside a count: both have noise in multiples of what one sample changes."""
    return float(row.get("samples") or 1.0) ** 2


def _matrix_distance(seen: str, expected: str) -> float:
    told = json.loads(seen)
    counts = np.array(told["counts"] if isinstance(told, dict) else told, float)
    plain = np.zeros_like(counts)
    known = np.array(json.loads(expected), float)
    plain[: len(known), : len(known)] = known
    return float(((counts - plain) ** 2).sum()) / 2  # a sample that moves changes two counts


def _losses_of(every: EveryLevel, pair: tuple[Any, Any], label: int) -> Vector:
    """Of both samples, under the global model of each round."""
    return np.array([[_loss(model, one.flatten().double().numpy()[None], np.array([label]))[0]
                      for model in every.models] for one in pair])  # fmt: skip


def _usual(every: EveryLevel, data: Data) -> Vector:
    x, y = data.test_x.flatten(1).double().numpy(), data.test_y.numpy()
    return np.array([_loss(model, x, y).mean() for model in every.models])


def _loss(model: Mapping[str, npt.NDArray[np.float32]], x: Vector, y: npt.NDArray[np.int64]) -> Vector:
    hidden = np.maximum(x @ model["hidden.weight"].T + model["hidden.bias"], 0.0)
    logits = hidden @ model["out.weight"].T + model["out.bias"]
    largest = logits.max(1)
    own: Vector = np.log(np.exp(logits - largest[:, None]).sum(1)) + largest - logits[np.arange(len(y)), y]
    return own


def _alike(rows: Rows, losses: Vector, usual: Vector, chance: np.random.Generator) -> int:
    """The sample whose losses, beside the usual ones, go with what the client tells; without numbers by lot."""
    told = np.array([one.get("entry_loss", np.nan) for one in rows], float) - usual
    known = np.isfinite(told)
    if known.sum() < 3:
        return int(chance.integers(2))
    mine = told[known] - told[known].mean()
    scores = [float(mine @ (one - usual)[known]) for one in losses]
    return int(np.argmax(scores)) if scores[0] != scores[1] else int(chance.integers(2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for number in range(given.trials):
        for one in trial(given.seed * 1_000_000 + number):
            tally = counts[one["level"], one["who"]]
            tally[0] += one["right"]
            tally[1] += 1
    print(table(counts))


def table(counts: Mapping[tuple[str, str], list[int]]) -> str:
    who = list(dict.fromkeys(one for _, one in counts))
    lines = [f"| level | {' | '.join(who)} |", "|---" * (len(who) + 1) + "|"]
    for level in (*LEVELS, "no rows"):
        lines.append(f"| {level} | {' | '.join(_cell(counts.get((level, one))) for one in who)} |")
    return "\n".join(lines)


def _cell(tally: list[int] | None) -> str:
    if tally is None:
        return ""
    right, total = tally
    low, high = wilson(right, total)
    return f"{right} of {total} ({100 * low:.0f} to {100 * high:.0f} %)"


if __name__ == "__main__":
    main()
