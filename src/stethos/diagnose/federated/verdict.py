"""Verdicts on the clients of a cohort: who is faulty, how, since when, how sure.

Works on matrices in memory, so that the same rules serve a finished run, a
live one, and `rnd.screen()` before aggregation.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.cohort import Cohort
from stethos.diagnose.federated.judge import HONEST, load_judge
from stethos.diagnose.federated.trait import Traits, traits_of

Array = npt.NDArray[np.float64]
FEWEST_CLIENTS = 4
_COPY = 0.999
_NOTHING = 1e-6
_WARM_UP = 2  # rounds before the global model can be relied on
WINDOWS = (10, 4)
_FEWEST_ROUNDS = 3  # of a client, to be judged
_PASSED = 3  # rounds without a sign of it, until a fault is over


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
    found: dict[str, Verdict] = {}
    for verdict in (*_certain(cohort), *_judged(cohort, probability)):
        known = found.get(verdict.client)
        if known is None or (verdict.is_certain, verdict.probability) > (known.is_certain, known.probability):
            found[verdict.client] = verdict
    return sorted(found.values(), key=lambda one: -one.probability)


# What is certain ------------------------------------------------------------------------------------


def _certain(cohort: Cohort) -> Iterable[Verdict]:
    took_part = ~np.isnan(cohort.norm_ratio) | (cohort.odd > 0)
    odd = _own_odd(cohort.odd > 0, took_part)
    nothing = (cohort.norm_ratio < _NOTHING) & took_part
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        typical = np.nanmedian(cohort.cos_last, axis=1, keepdims=True)
    copies = (cohort.cos_last > _COPY) & ~(typical > 0.99)
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


def _judged(cohort: Cohort, probability: float) -> Iterable[Verdict]:
    if len(cohort.clients) < FEWEST_CLIENTS or not len(cohort):
        return
    judge = load_judge()
    honest = judge.kinds.index(HONEST)
    settled = cohort.part(slice(min(_WARM_UP, len(cohort) - 1), len(cohort)))
    best: dict[int, tuple[float, Array, Traits, int]] = {}
    for start, stop in _stretches(len(settled)):
        traits = traits_of(settled.part(slice(start, stop)))
        shares = judge.probabilities(traits)
        is_seen = np.isfinite(settled.norm[start:stop]).sum(0) >= min(_FEWEST_ROUNDS, len(settled))
        for place in np.flatnonzero((1 - shares[:, honest] >= probability) & is_seen).tolist():
            sure = 1 - float(shares[place, honest])
            if place not in best or sure > best[place][0]:
                best[place] = (sure, shares[place], traits, stop)
    if not best:
        return
    single = np.stack(
        [1 - judge.probabilities(traits_of(cohort.part(slice(at, at + 1))))[:, honest] for at in range(len(cohort))]
    )
    for place, (sure, shares, traits, _) in best.items():
        kind = judge.kinds[int(np.argmax(np.where(np.arange(len(shares)) == honest, -1.0, shares)))]
        first, last = _span(single[:, place])
        source, target = (None, None)
        if kind == "label-flip" and traits.pair[place, 0] >= 0:
            target, source = (int(one) for one in traits.pair[place])  # labelled target, looks like source
        yield Verdict(
            cohort.clients[place], kind, sure, cohort.rounds[first],
            None if last >= len(cohort) - _PASSED else cohort.rounds[last], source, target,
        )  # fmt: skip


def _stretches(rounds: int) -> list[tuple[int, int]]:
    """Stretches of rounds to judge: the whole if it is short, else overlapping ones, long and short."""
    found = []
    for length in WINDOWS:
        if rounds <= length:
            found.append((0, rounds))
        else:
            step = max(length // 2, 1)
            found.extend((stop - length, stop) for stop in range(rounds, length - 1, -step))
    return list(dict.fromkeys(found))


def _span(chances: Array) -> tuple[int, int]:
    """The stretch of rounds in which a client most likely was faulty: where the sum of (chance - 1/2) is largest."""
    best, best_span = -np.inf, (0, len(chances) - 1)
    for first in range(len(chances)):
        total = np.cumsum(chances[first:] - 0.5)
        last = int(np.flatnonzero(total == total.max())[-1])
        if total[last] > best:
            best, best_span = float(total[last]), (first, first + last)
    return best_span
