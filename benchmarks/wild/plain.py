"""What plain rules on updates find in kept federations: told that it is one, and not told, at our rate of false alarms.

python -m benchmarks.wild.plain

Each rule is one number per client. Not told, it accuses from a cut that two in a hundred of the same clean federations
pass, which favours it. "Median" is the distance to the coordinate-wise median update, as in robust averaging; "traits"
the farthest of several numbers of an update against the federation's own spread, in the manner of FLTracer. FedDebug
needs the clients' models, which are not kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.wild.fit import SETS
from benchmarks.wild.kept import kept, window_of
from benchmarks.wild.score import wilson
from stethos.diagnose.federated.accusation import ALARM_RATE
from stethos.diagnose.federated.cohort import Cohort, cohorts_of
from stethos.outlier import deviations

Array = npt.NDArray[np.float64]


def _mean(values: Array) -> Array:
    return np.nan_to_num(np.nanmean(values, axis=0), nan=-1e9)


def _traits(cohort: Cohort) -> Array:
    sized = (np.log(np.maximum(one, 1e-9)) for one in (cohort.norm_ratio, cohort.first_ratio, cohort.last_ratio))
    numbers = (*sized, cohort.cos_centre, cohort.sign_agreement, cohort.cos_last, cohort.zero_share)
    apart = [np.abs(np.nan_to_num(deviations(np.nanmean(one, axis=0), 1e-3))) for one in numbers]
    return np.asarray(np.max(apart, axis=0))


def _from_median(cohort: Cohort) -> Array:
    """By the law of cosines, in lengths of the median client's update."""
    size, cosine = np.nan_to_num(cohort.norm_ratio, nan=1.0), np.nan_to_num(cohort.cos_centre)
    return _mean(np.sqrt(np.maximum(size**2 + 1 - 2 * size * cosine, 0.0)))


RULES: dict[str, Callable[[Cohort], Array]] = {
    "distance to the median update": _from_median,
    "cosine to the median update": lambda cohort: _mean(1 - cohort.cos_centre),
    "traits of updates, the farthest": _traits,
    "loss of the incoming model": lambda cohort: _mean(cohort.entry_loss),
    "length of the update": lambda cohort: _mean(np.abs(np.log(np.maximum(cohort.norm_ratio, 1e-9)))),
}


def main() -> int:
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    rows: list[tuple[npt.NDArray[np.bool_], dict[str, Array]]] = []
    for name in SETS:
        rows += [_row(played) for played in kept(name)]
    print("| told nothing but updates and losses | told that it is one | not told: one faulty, exact | two, exact |")
    print("|---|---|---|---|")
    for rule in RULES:
        single = [(faulty, found[rule]) for faulty, found in rows if faulty.sum() == 1]
        several = [(faulty, found[rule]) for faulty, found in rows if faulty.sum() > 1]
        cut = float(np.quantile([found[rule].max() for faulty, found in rows if not faulty.any()], 1 - ALARM_RATE))
        first = wilson(sum(bool(faulty[score.argmax()]) for faulty, score in single), len(single))
        exact = [wilson(sum(bool(((score > cut) == faulty).all()) for faulty, score in some), len(some))
                 for some in (single, several)]  # fmt: skip
        print(f"| {rule} | {first} | {exact[0]} | {exact[1]} |")
    return 0


def _row(played: dict[str, Any]) -> tuple[npt.NDArray[np.bool_], dict[str, Array]]:
    ((_, cohort),) = cohorts_of(window_of(played))
    faulty = np.array([client in played["faulty"] for client in cohort.clients])
    return faulty, {name: rule(cohort) for name, rule in RULES.items()}


if __name__ == "__main__":
    raise SystemExit(main())
