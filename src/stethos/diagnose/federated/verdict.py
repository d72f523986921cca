"""Verdicts on the clients of a cohort: who is faulty, how, since when, how sure.

Works on matrices in memory, so that the same rules serve a finished run, a
live one, and `rnd.screen()` before aggregation.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.cohort import Cohort
from stethos.diagnose.federated.judge import Judge, load_judge
from stethos.diagnose.federated.opinion import PERIOD, opinions_on, signal_of
from stethos.diagnose.federated.trait import Signals, Traits

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
FEWEST_CLIENTS = 4
SURE = 0.85  # that a client is faulty, to be accused
_COPY = 0.999
_ALIKE = 0.95  # where all go on in the last direction, as with a handful of weights, a copy is nothing special
_NOTHING = 1e-6
_FEWEST_ROUNDS = 3  # of a client, to be judged
_PASSED = 3  # rounds without a sign of it, until a fault is over
_FEW_CLIENTS = 6  # the judge never saw rounds of fewer who are not always the same
_PLAINLY = 6.0  # robust standard deviations between an accused of such rounds and the other clients
_PLAIN = (
    "norm_ratio", "entry_loss", "exit_loss", "cos_centre", "cos_last", "cos_self", "cos_back", "sign_agreement",
    "input_cos", "input_tail",
)  # fmt: skip
_OF_INPUTS = "feature-fault"  # who is merely unlike the others seems to have it, where no first layer shows the inputs
_OF_SIZE = ("norm_ratio", "entry_loss", "exit_loss")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A client that is not what it should be; `last` is None while it goes on.

    `source` and `target` are the classes of a label flip. `is_certain` where an
    exact rule was broken.
    """

    client: str
    kind: str
    probability: float
    first: int
    last: int | None
    source: int | None = None
    target: int | None = None
    is_certain: bool = False


def verdicts_on(cohort: Cohort, probability: float) -> list[Verdict]:
    """All verdicts of at least this probability, the surest first; one per client."""
    return verdicts_and_split(cohort, probability)[0]


def verdicts_and_split(cohort: Cohort, probability: float) -> tuple[list[Verdict], int]:
    """All verdicts, and how many clients look faulty against each other where those are most of them, else 0.

    What is judged is how a client differs from most others: where most differ, as masked updates of a secure
    aggregation do, nobody can be accused but who broke an exact rule.
    """
    found = {verdict.client: verdict for verdict in certain_on(cohort)}
    judged = [one for one in _judged(cohort, probability, frozenset(found)) if one.client not in found]
    split = sum(one.probability >= SURE for one in judged)
    if 2 * split > len(cohort.clients) - len(found):
        judged = []
    else:
        split = 0
    return sorted((*found.values(), *judged), key=lambda one: -one.probability), split


def clients_per_round(cohort: Cohort) -> int:
    """How many clients can be compared with each other in a typical round."""
    return int(np.median(_took_part(cohort).sum(1))) if len(cohort) else 0


def _took_part(cohort: Cohort) -> Mask:
    took_part: Mask = ~np.isnan(cohort.norm) | ~np.isnan(cohort.norm_ratio) | (cohort.odd > 0)
    return took_part


# What is certain ------------------------------------------------------------------------------------


def certain_on(cohort: Cohort) -> Iterable[Verdict]:
    """Verdicts on clients that broke an exact rule."""
    took_part = _took_part(cohort)
    odd = _own_odd(cohort.odd > 0, took_part)
    is_zero = (cohort.norm == 0) & (cohort.odd == 0)  # of NaN alone nothing is left to measure, either
    nothing = ((cohort.norm_ratio < _NOTHING) | is_zero) & took_part & (cohort.samples != 0)  # none, and says so
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        typical = np.nanmedian(cohort.cos_last, axis=1, keepdims=True)
    copies = (cohort.cos_last > _COPY) & ~(typical > _ALIKE)
    for place, client in enumerate(cohort.clients):
        for kind, broken, fewest in (("nan", odd, 1), ("free-rider", nothing | copies, 2)):
            rounds = np.flatnonzero(broken[:, place])
            if len(rounds) >= min(fewest, max(took_part[:, place].sum(), 1)):
                first, last = rounds[0], rounds[-1]
                is_over = (took_part & (cohort.odd == 0) & ~broken)[last + 1 :, place].any()
                end = cohort.rounds[last] if is_over else None
                yield Verdict(client, kind, 0.99, cohort.rounds[first], end, is_certain=True)
                break


def _own_odd(odd: npt.NDArray[np.bool_], took_part: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """NaN that clients made themselves: once all have it, it has come from the global model."""
    own = odd.copy()
    for number in range(1, len(odd)):
        if odd[:number].any() and not (took_part[number] & ~odd[number]).any():
            own[number] = False
    return own


# What is judged -------------------------------------------------------------------------------------


def _judged(cohort: Cohort, probability: float, broken: Collection[str]) -> Iterable[Verdict]:
    present = clients_per_round(cohort)
    if present < FEWEST_CLIENTS:
        return
    judge = load_judge()
    is_broken = np.array([client in broken for client in cohort.clients])
    best: dict[int, tuple[float, Array, Traits]] = {}
    for start, stop in _periods(len(cohort)):
        period = cohort.part(slice(start, stop))
        before, after = opinions_on(period, judge, is_broken)
        shares = judge.reviewed(signal_of(period, before, after))
        is_seen = np.isfinite(period.norm).sum(0) >= min(_FEWEST_ROUNDS, len(period))
        for place in np.flatnonzero((1 - shares[:, 0] >= probability) & is_seen).tolist():
            if place not in best or shares[place, 0] < best[place][1][0]:
                best[place] = (1 - float(shares[place, 0]), shares[place], after.traits)
    if present < min(_FEW_CLIENTS, len(cohort.clients)):
        best = {place: found for place, found in best.items() if _stands_out(cohort, place)}
    if not best:
        return
    chances = _chances(cohort, judge, np.array([place in best for place in range(len(cohort.clients))]) | is_broken)
    are_inputs_known = bool(np.isfinite(cohort.input_cos).any())
    for place, (sure, shares, traits) in best.items():
        kind = judge.kinds[1 + int(shares[1:].argmax())]
        if kind == _OF_INPUTS and not are_inputs_known and not _stands_out(cohort, place):
            continue
        first, last = _span(chances[:, place])
        source, target = (None, None)
        if kind == "label-flip" and traits.pair[place, 0] >= 0:
            target, source = (int(one) for one in traits.pair[place])  # labelled target, looks like source
        yield Verdict(
            cohort.clients[place], kind, sure, cohort.rounds[first],
            None if last >= len(cohort) - _PASSED else cohort.rounds[last], source, target,
        )  # fmt: skip


def _stands_out(cohort: Cohort, place: int) -> bool:
    """Whether a client is far from all others in a plain number, over all its rounds.

    Asked where few of many clients meet in a round: whom a client is compared with then changes from round to round,
    and so does what is typical. And where a fault of the inputs is named that nobody saw.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing are NaN
        for name in _PLAIN:
            values = getattr(cohort, name)
            values = np.log(np.maximum(values, 1e-9)) if name in _OF_SIZE else values
            means = np.nanmean(values - np.nanmedian(values, axis=1, keepdims=True), axis=0)
            others = np.delete(means, place)
            middle = np.nanmedian(others)
            spread = 1.4826 * np.nanmedian(np.abs(others - middle))
            if abs(means[place] - middle) >= _PLAINLY * max(spread, 1e-6):
                return True
    return False


def _periods(rounds: int) -> list[tuple[int, int]]:
    """Stretches of rounds to judge: the whole if it is short, else overlapping ones, the last first."""
    starts = range(max(rounds - PERIOD, 0), 0, -PERIOD // 2)
    return [*((start, start + PERIOD) for start in starts), (0, min(PERIOD, rounds))]


def _chances(cohort: Cohort, judge: Judge, is_accused: Mask) -> Array:
    """How likely each client was faulty in each single round, against those that nobody accuses."""
    signals = Signals(cohort, ~is_accused if not is_accused.all() else None)
    rounds = [signals.over(at, at + 1) for at in range(len(cohort))]
    values = np.concatenate([one.values for one in rounds])
    honest: Array = judge.probabilities(Traits(rounds[0].names, values, rounds[0].pair))[:, 0]
    return 1 - honest.reshape(len(cohort), -1)


def _span(chances: Array) -> tuple[int, int]:
    """The stretch of rounds in which a client most likely was faulty: where the sum of (chance - 1/2) is largest."""
    best, best_span = -np.inf, (0, len(chances) - 1)
    for first in range(len(chances)):
        total = np.cumsum(chances[first:] - 0.5)
        last = int(np.flatnonzero(total == total.max())[-1])
        if total[last] > best:
            best, best_span = float(total[last]), (first, first + last)
    return best_span
