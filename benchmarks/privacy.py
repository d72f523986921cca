"""What each level of privacy costs in diagnosis, and gives: `make privacybench`. A table and a picture for the docs.

    python -m benchmarks.privacy [--limit-s S] [--keep FILE] [--picture docs/images/privacy.svg]

The federations of `make faultbench` (digits, 10 and 30 clients, five splits, twelve kinds of faults) are played once.
What clients report goes through the one filter of a site, once for each level; the server judges what is left beside
the updates that it sees anyway. From the same rows an attacker, who has the global model of each round and data of the
same kind, estimates every client's share of each label; who has no row can only guess all clients alike.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.optimize import nnls

from benchmarks.faults.__main__ import wilson
from benchmarks.faults.case import Case, facts_of, play
from benchmarks.faults.design import cases
from stethos.collect.filter import filtered
from stethos.collect.noise import NoiseLedger, NoiseSource, multiplier_for
from stethos.collect.policy import LEVELS, PRESETS, NoiseBudget, Policy
from stethos.diagnose.federated.cohort import cohort_of
from stethos.diagnose.federated.verdict import IN_COMPANY, SURE, verdicts_on
from stethos.federate.screening import Screening
from stethos.federate.site import Update
from stethos.lab.data import Data, load
from stethos.lab.result import Exchange
from stethos.record.arrow import segment_schema
from stethos.schema import CLIENT_REPORTS

Vector = npt.NDArray[np.float64]
TOLD = ("samples", "accuracy", "entry_loss", "exit_loss", "confusion")


class _DrawnNoise(NoiseSource):
    """The noise of level L3 with numpy's numbers and without a ledger on disk: thousands of federations' worth."""

    def __init__(self, chance: np.random.Generator) -> None:
        super().__init__(NoiseLedger(Path("none")), "none")
        self._chance = chance

    def _released(self, what: str, values: Sequence[Any], budget: NoiseBudget, change: Any) -> list[Any]:
        multiplier = self._multipliers.setdefault(budget, multiplier_for(budget))
        draw = lambda unit: float(self._chance.normal(0, multiplier * unit))  # noqa: E731
        return [None if value is None else change(value, place, draw) for place, value in enumerate(values)]


def policies(rounds: int, classes: int) -> dict[str, Policy]:
    """The presets; L3 has one budget of epsilon 1 for the two numbers of each round."""
    budget = NoiseBudget(releases=2 * rounds, classes=classes)
    return {level: Policy(level, 32, PRESETS[level], budget) for level in LEVELS}


class EveryLevel:
    """What a server sees of one federation at each level: a cohort to judge, and the rows that left each client."""

    def __init__(self, case: Case, classes: int) -> None:
        self._policies = policies(case.rounds, classes)
        self._noise = _DrawnNoise(np.random.default_rng([case.seed, 0x9]))
        self._screens = {level: Screening() for level in LEVELS}
        self._columns: dict[str, list[Any]] = {level: [] for level in LEVELS}
        self.left: dict[str, list[dict[str, dict[str, Any]]]] = {level: [] for level in LEVELS}
        self.models: list[dict[str, npt.NDArray[np.float32]]] = []

    def __call__(self, seen: Exchange) -> None:
        def state(vector: Any) -> dict[str, npt.NDArray[np.float32]]:
            entries = seen.layout.entries
            return {one.name: vector[one.start : one.end].reshape(one.shape).numpy().copy() for one in entries}

        current = state(seen.current)
        self.models.append(current)
        updates = [Update(name, state(row)) for name, row in zip(seen.clients, seen.sent, strict=True)]
        rows = _reports(seen)
        for level, policy in self._policies.items():
            left = _told(filtered(policy, CLIENT_REPORTS, rows, self._noise), seen.clients)
            self.left[level].append(left)
            self._screens[level].screen(seen.round, current, updates, left)
            self._columns[level].append(self._screens[level].history.recent[-1])

    def accused(self, level: str) -> set[str]:
        return {one.client for one in verdicts_on(cohort_of(self._columns[level]), SURE, IN_COMPANY)}


def _reports(seen: Exchange) -> pa.RecordBatch:
    """What the clients' drainers would hand to the filter."""
    facts, records = facts_of(seen), {one.client: one for one in seen.records}
    columns: dict[str, list[Any]] = {
        name: [getattr(records[client], name) for client in seen.clients] for name in ("accuracy",)
    }
    for name in ("samples", "entry_loss", "exit_loss"):
        columns[name] = [facts[client][name] for client in seen.clients]
    tables = [facts[client]["confusion"] for client in seen.clients]
    columns["confusion"] = [None if one is None else json.dumps(one.astype(int).tolist()) for one in tables]
    columns |= {"client": list(seen.clients), "side": ["client"] * len(seen.clients)}
    schema = segment_schema(CLIENT_REPORTS)
    count = len(seen.clients)
    return pa.RecordBatch.from_pydict({one.name: columns.get(one.name, [None] * count) for one in schema}, schema)


def _told(left: pa.RecordBatch | None, clients: Sequence[str]) -> dict[str, dict[str, Any]]:
    if left is None:
        return {}
    told = {name: left.column(name).to_pylist() for name in TOLD}
    return {
        client: {name: values[place] for name, values in told.items() if values[place] is not None}
        for place, client in enumerate(clients)
    }


def _counts_in(text: str) -> Vector:
    """A matrix, with or without noise."""
    content = json.loads(text)
    return np.array(content["counts"] if isinstance(content, dict) else content, float)


# The attacker ------------------------------------------------------------------------------------------


def estimated_shares(
    left: Sequence[Mapping[str, Mapping[str, Any]]], client: str, losses: Vector, rights: Vector, usual: Vector
) -> Vector:
    """A client's share of each label, from the rows that left it; `usual` where they tell nothing.

    A matrix tells it at once. Else the loss of a known model on the client's data is the mean of the losses on single
    labels, which the attacker knows from data of its own (`losses`, `rights`: a row per round), weighted by the shares:
    an equation for each round, solved for shares near the usual ones.
    """
    mine = [one.get(client, {}) for one in left]
    tables = [_counts_in(one["confusion"]).sum(1) for one in mine if "confusion" in one]
    if tables:
        counts = np.maximum(np.mean([_sized(one, len(usual)) for one in tables], axis=0), 0.0)
        return counts / counts.sum() if counts.sum() > 0 else usual
    known: list[tuple[Vector, float]] = []
    for place, one in enumerate(mine):
        if np.isfinite(one.get("entry_loss", np.nan)):
            known.append((losses[place] / losses[place].mean(), one["entry_loss"] / losses[place].mean()))
        if "accuracy" in one and np.isfinite(one["accuracy"]) and "entry_loss" in one:
            known.append((rights[place], one["accuracy"]))
    if not known:
        return usual
    best, right = usual, np.inf
    design, values = np.array([one for one, _ in known]), np.array([one for _, one in known])
    for pull in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0):  # of the usual shares: the one that predicts left-out rounds best
        error = sum(
            (design[i] @ _solved(np.delete(design, i, 0), np.delete(values, i), usual, pull) - values[i]) ** 2
            for i in range(len(values))
        )
        if error < right:
            best, right = _solved(design, values, usual, pull), error
    return best


def _solved(design: Vector, values: Vector, usual: Vector, pull: float) -> Vector:
    size = len(usual)
    rows = np.concatenate([design, 10 * np.ones((1, size)), pull * np.eye(size)])
    found = nnls(rows, np.concatenate([values, [10.0], pull * usual]))[0]
    return found / found.sum() if found.sum() > 0 else usual


def _sized(counts: Vector, size: int) -> Vector:
    return np.pad(counts, (0, max(0, size - len(counts))))[:size]


def known_of_labels(models: Sequence[Mapping[str, Any]], data: Data) -> tuple[Vector, Vector]:
    """Loss and share of right answers of each round's model on each label, on data that nobody trains on."""
    x, y = data.test_x.flatten(1).double().numpy(), data.test_y.numpy()
    losses, rights = [], []
    for one in models:
        hidden = np.maximum(x @ one["hidden.weight"].T + one["hidden.bias"], 0.0)
        logits = hidden @ one["out.weight"].T + one["out.bias"]
        largest = logits.max(1)
        own = np.log(np.exp(logits - largest[:, None]).sum(1)) + largest - logits[np.arange(len(y)), y]
        losses.append([own[y == label].mean() for label in range(data.classes)])
        rights.append([(logits.argmax(1) == y)[y == label].mean() for label in range(data.classes)])
    return np.array(losses), np.array(rights)


# Playing ----------------------------------------------------------------------------------------------


def played(case: Case) -> dict[str, Any]:
    data = load(str(case.data), seed=case.seed)
    every = EveryLevel(case, data.classes)
    result = play(case, every).result
    truth = sorted(one.names[0] for one in result.faults)
    losses, rights = known_of_labels(every.models, data)
    counts = np.array(list(result.label_counts.values()), float)
    usual = counts.sum(0) / counts.sum()
    chance = np.random.default_rng([case.seed, 0xA])
    attack: dict[str, list[tuple[float, float]]] = {"guess": []}
    for client, own in result.label_counts.items():
        shares = np.array(own, float) / sum(own)
        attack["guess"].append(_scored(usual, shares, chance))
        for level in LEVELS:
            found = estimated_shares(every.left[level], client, losses, rights, usual)
            attack.setdefault(level, []).append(_scored(found, shares, chance))
    return {
        "seed": case.seed, "clients": case.clients, "split": str(case.split), "truth": truth,
        "fault": case.faults[0][0] if case.faults else None,
        "accused": {level: sorted(every.accused(level)) for level in LEVELS}, "attack": attack,
    }  # fmt: skip


def _scored(found: Vector, shares: Vector, chance: np.random.Generator) -> tuple[float, float]:
    """How far apart two distributions are (0 to 1), and whether the commonest label is right; of equals one by lot."""
    first = chance.choice(np.flatnonzero(found >= found.max() - 1e-3))
    return round(float(np.abs(found - shares).sum() / 2), 4), float(shares[first] >= shares.max() - 1e-9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit-s", type=float, default=1e9, help="stop playing after this; run it again to go on")
    parser.add_argument("--keep", type=Path, default=Path("build/privacy.jsonl"), help="what was played before, and is")
    parser.add_argument("--picture", type=Path, help="write the two curves there, as SVG")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.keep.read_text().splitlines()] if given.keep.exists() else []
    listed = [one for one in cases(is_full=False) if one.data == "digits"]
    given.keep.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + given.limit_s
    for place in np.random.default_rng(1).permutation(len(listed))[len(rows) :]:
        if time.monotonic() > until:
            break
        rows.append(played(listed[place]))
        with given.keep.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    told = {level: figures(rows, level) for level in LEVELS}
    print(table(rows, told))
    if given.picture:
        from benchmarks.privacy_picture import drawn

        given.picture.write_text(drawn(told))


def figures(rows: Sequence[Mapping[str, Any]], level: str) -> dict[str, tuple[int, int] | float]:
    """Of one level: exact, several, clean; and how far off the attacker and the guess are."""
    one = [row["accused"][level] == row["truth"] for row in rows if len(row["truth"]) == 1]
    labels = [row["accused"][level] == row["truth"] for row in rows
              if len(row["truth"]) == 1 and str(row["fault"]).startswith("label")]  # fmt: skip
    several = [row["accused"][level] == row["truth"] for row in rows if len(row["truth"]) > 1]
    clean = [bool(row["accused"][level]) for row in rows if not row["truth"]]
    found = np.array([pair for row in rows for pair in row["attack"][level]])
    guess = np.array([pair for row in rows for pair in row["attack"]["guess"]])
    return {
        "one": (sum(one), len(one)), "labels": (sum(labels), len(labels)), "several": (sum(several), len(several)),
        "clean": (sum(clean), len(clean)), "far": float(found[:, 0].mean()), "guess_far": float(guess[:, 0].mean()),
        "top": float(found[:, 1].mean()), "guess_top": float(guess[:, 1].mean()), "clients": float(len(found)),
        "gained": float((guess[:, 0] - found[:, 0]).mean()),
    }  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]], told: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["| level | one faulty, exactly named | of these labels | several | clean accused | label shares off by | "
             "commonest label right |", "|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for level, one in told.items():
        cells = [_counted(one[name]) for name in ("one", "labels", "several", "clean")]
        lines.append(f"| {level} | " + " | ".join(cells) + f" | {one['far']:.3f} | {100 * one['top']:.0f} % |")
    first = next(iter(told.values()))
    lines.append(f"| a guess | | | | | {first['guess_far']:.3f} | {100 * first['guess_top']:.0f} % |")
    lines.append(f"\n{len(rows)} federations, {first['clients']:.0f} clients.")
    return "\n".join(lines)


def _counted(pair: tuple[int, int]) -> str:
    good, total = pair
    low, high = wilson(good, total)
    return f"{good} of {total} ({100 * max(low, 0.0):.0f} to {100 * high:.0f} %)" if total else "-"


if __name__ == "__main__":
    main()
