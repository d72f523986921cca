"""Fits what `faulty-client` weighs clients by, and says how it holds on sets that it was not fitted on.

python -m benchmarks.wild.fit                 leave one set out at a time, and show what comes of it
python -m benchmarks.wild.fit --axes          the same with one family left out at a time, on each axis
python -m benchmarks.wild.fit --write FILE    fit on all sets, with cuts from the ones left out, and write it

What is exact by its nature (what was sent against what was done, how an optimizer steps) is rare among faults, so its
slopes are drawn towards what such evidence is worth, all others towards nothing.
"""

from __future__ import annotations

import argparse
import json
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize  # type: ignore[import-untyped]

from benchmarks.wild.data import CACHE
from benchmarks.wild.kept import kept, seeds, window_of
from benchmarks.wild.score import wilson
from stethos.diagnose.federated.accusation import ALARM_RATE, weigh
from stethos.diagnose.federated.cohort import cohorts_of
from stethos.diagnose.federated.inside_evidence import inside_of
from stethos.diagnose.federated.unlikeness import AT_TIMES
from stethos.diagnose.federated.weighing import INSIDE, KNOTS, LINEAR, UPDATES, EvidenceWeights, terms_of

Array = npt.NDArray[np.float64]
SETS = ("development", "opened", "held-out", "third", "fourth", "fifth")
_LEAST_SCALE = 0.05
# What doubling the distance of exact evidence adds to the logarithm of the odds.
_EXPECTED = {
    "rest": 0.9, "odd": 0.9, "uncleared": 0.9, "begin": 0.75, "trained": 0.75, "by_gradient": 0.75, "other": 1.5,
    "around_steps": 0.6, "relabelled": 0.6, "rate": 0.5, "sent": 0.4, "repeats": 0.3, "fewer": 0.9, "lost": 2.0,
}  # fmt: skip
# Numbers that the sets were not played with: slopes by knot, as set on other federations with broken columns, rows in
# order and copies. Where they are not known they are 0, and these stay.
_AS_SET = {
    "joint": (2.5, 4.5, 2.0, 0.5), "link": (1.5, 3.0, 2.5, 0.5), "spread": (0.8, 0.0, 0.5, 2.5),
    "fixed": (4.5, 2.5, 0.5, 0.3),
    "copies": (2.0, 4.0, 1.0, 0.3), "again": (1.5, 2.0, 1.5, 0.5), "redundant": (1.0, 1.0, 1.0, 0.3),
    "in_order": (1.0, 1.75, 1.75, 0.5),
    "more": (0.0, 2.5, 2.5, 0.5),
    "unknown": (2.0, 3.0, 2.0, 0.5), "rescaled": (1.5, 2.5, 2.0, 0.5), "order": (2.0, 3.0, 2.0, 0.5),
}  # fmt: skip
_FROM_THE_FIRST = ("lost",)  # knot on: honest clients hardly ever get there
_VERY_FAR, _EVEN_SO = 4.0, 0.3  # the same of all others, from so far on
RATES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


class Judged(NamedTuple):
    """A federation: its clients' numbers, and which of them are faulty."""

    name: str
    case: dict[str, Any]
    clients: tuple[str, ...]
    foreign: str | None
    is_faulty: npt.NDArray[np.bool_]
    numbers: dict[str, Array]
    outside: dict[str, Array]  # by updates alone
    is_told: npt.NDArray[np.bool_]  # by what is exact, and by rules that accuse alone

    def terms(self, names: Sequence[str]) -> Array:
        return np.concatenate([terms_of(name, self.numbers[name]) for name in names], axis=1)


def judged_in(name: str) -> list[Judged]:
    """All kept federations of a set; their numbers are kept beside them."""
    place = CACHE / "numbers" / f"{name}.pickle"
    known: dict[int, tuple[Any, ...]] = pickle.loads(place.read_bytes()) if place.exists() else {}
    if seeds(name) - known.keys():
        known |= {
            one["case"]["seed"]: tuple(_judged(name, one)) for one in kept(name) if one["case"]["seed"] not in known
        }
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(pickle.dumps(known))
    return [Judged(*known[seed]) for seed in sorted(known)]


def _judged(name: str, played: dict[str, Any]) -> Judged:
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    window = window_of(played)
    ((_, cohort),) = cohorts_of(window)
    weighed = weigh(cohort, next(iter(inside_of(window).values()), None))
    told = {one.client for one in replace(weighed, probabilities=np.zeros(len(cohort.clients))).accused()}
    numbers = {name: weighed.numbers.get(name, np.zeros(len(cohort.clients))) for name in INSIDE}
    alone = weigh(cohort).numbers
    outside = {name: alone.get(name, np.zeros(len(cohort.clients))) for name in UPDATES}
    is_faulty = np.array([client in played["faulty"] for client in cohort.clients])
    return Judged(name, played["case"], cohort.clients, played["foreign"], is_faulty, numbers, outside,
                  np.array([client in told for client in cohort.clients]))  # fmt: skip


# Fitting ----------------------------------------------------------------------------------------------


def fitted(federations: Sequence[Judged], names: Sequence[str], ridge: float) -> EvidenceWeights:
    """A logistic regression of the terms of numbers, with a penalty on how far slopes are from what is expected.

    Evidence can only speak against a client; that its mix of labels is another one may excuse it.
    """
    inputs = np.concatenate([one.terms(names) for one in federations])
    goal = np.concatenate([one.is_faulty for one in federations]).astype(float)
    scale = inputs.std(0) + _LEAST_SCALE
    rows = np.column_stack([inputs / scale, np.ones(len(inputs))])
    sizes = [terms_of(name, np.zeros(1)).shape[1] for name in names]
    prior = np.concatenate([_expected(name, size) for name, size in zip(names, sizes, strict=True)]) * scale

    def loss(weights: Array) -> tuple[float, Array]:
        total = np.clip(rows @ weights, -30, 30)
        apart = np.append(weights[:-1] - prior, 0.0)
        chance = 1 / (1 + np.exp(-total))
        value = float((np.logaddexp(0, total) - goal * total).sum() + ridge * apart @ apart / 2)
        return value, np.asarray(rows.T @ (chance - goal) + ridge * apart)

    bounds = [(None, 0.0) if name == "mix" else (0.0, None) for name, size in zip(names, sizes, strict=True)
              for _ in range(size)]  # fmt: skip
    start = np.append(prior, -4.0)
    found = minimize(loss, start, jac=True, bounds=[*bounds, (None, None)], method="L-BFGS-B").x
    slopes = np.split(found[:-1] / scale, np.cumsum(sizes)[:-1])
    return EvidenceWeights(dict(zip(names, slopes, strict=True)), float(found[-1]), ((0.01, 0.5),))


def _expected(name: str, size: int) -> Array:
    """Slopes before anything was seen; a mean and what happens at times share what they are worth."""
    if name in LINEAR:
        return np.full(size, _EXPECTED.get(name, 0.0))
    if (known := _AS_SET.get(name.removesuffix(AT_TIMES))) is not None:
        return np.array(known)
    worth = _EXPECTED.get(name.removesuffix(AT_TIMES), 0.0)
    least = 0.0 if name in _FROM_THE_FIRST else 1.0
    far = max(worth, _EVEN_SO)
    return np.array([0.0 if knot < least else worth if knot < _VERY_FAR else far for knot in KNOTS[:size]])


def left_out(federations: Sequence[Judged], names: Sequence[str], ridge: float, axis: str | None = None) -> list[Array]:
    """Each federation's probabilities by weights that its set had no part in, or its family on an axis."""

    def family(one: Judged) -> str:
        return one.name if axis is None else str(one.case[axis])

    fits = {
        name: fitted([one for one in federations if family(one) != name or name == "None"], names, ridge)
        for name in sorted({family(one) for one in federations})
    }
    return [fits[family(one)].probabilities(one.numbers) for one in federations]


def cuts_of(federations: Sequence[Judged], found: Sequence[Array]) -> dict[str, float]:
    """From which probability on a share of the clean federations has an accusation."""
    most = [float(chance.max()) for one, chance in zip(federations, found, strict=True) if not one.is_faulty.any()]
    return {str(rate): round(float(np.quantile(most, 1 - rate)), 4) for rate in RATES}


# Showing ----------------------------------------------------------------------------------------------


def with_rules(federations: Sequence[Judged], found: Sequence[Array]) -> list[Array]:
    """Probabilities where what accuses alone does so."""
    return [np.maximum(chance, 0.9999 * one.is_told) for one, chance in zip(federations, found, strict=True)]


def line_of(title: str, federations: Sequence[Judged], found: Sequence[Array], cut: float) -> str:
    """One row of a table."""
    single: list[bool] = []
    several: list[bool] = []
    clean: list[bool] = []
    foreign: list[bool] = []
    right: list[tuple[bool, float]] = []
    for one, chance in zip(federations, found, strict=True):
        accused = chance >= cut
        count = int(one.is_faulty.sum())
        (clean if not count else single if count == 1 else several).append(
            bool(accused.any()) if not count else bool((accused == one.is_faulty).all())
        )
        if one.foreign in one.clients:
            foreign.append(bool(accused[one.clients.index(one.foreign)]))
        right += list(zip(one.is_faulty[accused].tolist(), chance[accused].tolist(), strict=True))
    shares = [wilson(sum(listed), len(listed)) for listed in (single, several, clean, foreign)]
    good = wilson(sum(is_right for is_right, _ in right), len(right))
    said = float(np.mean([sure for _, sure in right])) if right else 0.0
    return f"| {title} | {' | '.join(shares)} | {good}, said {said:.2f} |"


def show(federations: Sequence[Judged], names: Sequence[str], ridge: float) -> list[Array]:
    found = left_out(federations, names, ridge)
    cut = cuts_of(federations, found)[str(ALARM_RATE)]
    for title, chances in (("weighed", found), ("and rules", with_rules(federations, found))):
        print(f"\n| set left out, {title} (from {cut:.2f}) | one faulty: exact | two: exact | clean accused "
              "| foreign accused | right |")  # fmt: skip
        print("|---|---|---|---|---|---|")
        for name in SETS:
            chosen = [place for place, one in enumerate(federations) if one.name == name]
            if chosen:
                print(line_of(name, [federations[k] for k in chosen], [chances[k] for k in chosen], cut))
        print(line_of("all", federations, chances, cut))
    return found


AXES = ("data", "model", "algorithm", "split", "fault")


def show_axes(federations: Sequence[Judged], names: Sequence[str], ridge: float, cut: float) -> None:
    """Leave one family out at a time, on each axis; then each family that has enough federations."""
    found = {axis: with_rules(federations, left_out(federations, names, ridge, axis)) for axis in AXES}
    print("\n| family left out, by | one faulty: exact | two: exact | clean accused | foreign accused | right |")
    print("|---|---|---|---|---|---|")
    for axis in AXES:
        print(line_of(axis, federations, found[axis], cut))
    for axis in AXES:
        print(f"\n| {axis} left out | one faulty: exact | two: exact | clean accused | foreign accused | right |")
        print("|---|---|---|---|---|---|")
        for family in sorted({str(one.case[axis]) for one in federations} - {"None"}):
            mine = [place for place, one in enumerate(federations) if str(one.case[axis]) == family]
            print(line_of(family, [federations[k] for k in mine], [found[axis][k] for k in mine], cut))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--axes", action="store_true", help="leave out one family at a time, too")
    parser.add_argument("--ridge", type=float, default=20.0)
    arguments = parser.parse_args()
    federations = [one for name in SETS for one in judged_in(name)]
    made: dict[str, Any] = {"federations": {name: sum(one.name == name for one in federations) for name in SETS}}
    for title, names in (("inside", INSIDE), ("updates", UPDATES)):
        print(title)
        if title == "updates":
            federations = [one._replace(numbers=one.outside, is_told=one.is_told & False) for one in federations]
        found = show(federations, names, arguments.ridge)
        fit = fitted(federations, names, arguments.ridge)
        made[title] = {
            "slopes": {name: slopes.round(4).tolist() for name, slopes in fit.slopes.items() if slopes.any()},
            "bias": round(fit.bias, 4), "cuts": cuts_of(federations, found),
        }  # fmt: skip
        if arguments.axes:
            show_axes(federations, names, arguments.ridge, made[title]["cuts"][str(ALARM_RATE)])
    if arguments.write:
        arguments.write.write_text(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
