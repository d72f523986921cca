"""Verdicts on the clients of a cohort: who is faulty, how, since when, how sure.

Works on matrices in memory, so that the same rules serve a finished run, a
live one, and `rnd.screen()` before aggregation.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.cohort import Cohort, is_alone_with, shared_labels
from stethos.diagnose.federated.judge import PERIOD, Judge, load_judge, opinions_on, signal_of
from stethos.diagnose.federated.trait import Signals, Traits
from stethos.outlier import PLAIN_DEVIATIONS

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
FEWEST_CLIENTS = 4
SURE = 0.85  # that a client is faulty, to be accused
IN_COMPANY = 0.5  # the same, where another is surely accused of the same fault: more likely than not
_COPY = 0.999
_ALIKE = 0.95  # where all go on in the last direction, as with a handful of weights, a copy is nothing special
_EQUAL = 1e-6  # of its size, and of a cosine: no two trainings come that near
_NOTHING = 1e-6
_MANY = 0.4  # of the clients
_HUGE = 100.0  # times the median client's update
_FEWEST_ROUNDS = 3  # of a client, to be judged
_PASSED = 3  # rounds without a sign of it, until a fault is over
_FEW_CLIENTS = 6  # the judge never saw rounds of fewer who are not always the same
_PLAIN = (
    "norm_ratio", "entry_loss", "exit_loss", "cos_centre", "cos_last", "cos_self", "cos_back", "sign_agreement",
    "input_cos", "input_tail",
)  # fmt: skip
_OF_INPUTS = "feature-fault"  # who is merely unlike the others seems to have it, where no first layer shows the inputs
OF_DATA = ("label-flip", "label-noise", "backdoor", _OF_INPUTS)
_SHARED = 2 / 3  # of a typical client's labels; in one in a hundred federations that the judge learnt from it is less
_LEAST_SHARED = 0.5  # else a client has most samples with its labels itself
_Found = tuple[Array, Traits]  # shares of the kinds, honesty first, and what they were made from
_OF_SIZE = ("norm_ratio", "entry_loss", "exit_loss")


@dataclass(frozen=True, slots=True)
class ClientVerdict:
    """A client that is not what it should be; `last` is None while it goes on.

    `source` and `target` are the classes of a label flip. `is_certain` where an
    exact rule was broken. `guilt` says on what it stands: "buggy" on what the client's own data, training
    and sending show, "hostile" on its updates alone.
    """

    client: str
    kind: str
    probability: float
    first: int
    last: int | None
    source: int | None = None
    target: int | None = None
    is_certain: bool = False
    guilt: Literal["buggy", "hostile"] = "hostile"


def verdicts_on(cohort: Cohort, probability: float, in_company: float | None = None) -> list[ClientVerdict]:
    """All verdicts of at least this probability, the surest first; one per client.

    Where a client is accused that surely, `in_company` is enough to accuse others of the same fault; unless given,
    nobody is accused with less than `probability`.
    """
    return verdicts_and_split(cohort, probability, in_company)[0]


def verdicts_and_split(
    cohort: Cohort, probability: float, in_company: float | None = None
) -> tuple[list[ClientVerdict], int]:
    """All verdicts, and how many clients look faulty against each other where those are most of them, else 0.

    What is judged is how a client differs from most others: where most differ, as masked updates of a secure
    aggregation do, nobody can be accused but who broke an exact rule.
    """
    found = {verdict.client: verdict for verdict in certain_on(cohort)}
    least = probability if in_company is None else min(in_company, probability)
    judged = [one for one in _judged(cohort, probability, least, frozenset(found)) if one.client not in found]
    split = sum(one.probability >= SURE for one in judged)
    if 2 * split > len(cohort.clients) - len(found):
        judged = []
    else:
        split = 0
    return sorted((*found.values(), *judged), key=lambda one: -one.probability), split


def clients_per_round(cohort: Cohort) -> int:
    """How many clients can be compared with each other in a typical round."""
    return int(np.median(_took_part(cohort).sum(1))) if len(cohort) else 0


def clients_without_peers(cohort: Cohort) -> int:
    """How many clients have data that those of the others say nothing about; faults of data are not told of them."""
    shared = shared_labels(cohort)
    return int((shared < _LEAST_SHARED).sum()) if _is_little(shared) else 0


def _is_little(shared: Array) -> bool:
    """Whether clients have less in common than in the federations that the judge learnt from."""
    known = shared[np.isfinite(shared)]
    return len(known) > 0 and float(np.median(known)) < _SHARED


def _took_part(cohort: Cohort) -> Mask:
    took_part: Mask = ~np.isnan(cohort.norm) | ~np.isnan(cohort.norm_ratio) | (cohort.odd > 0)
    return took_part


# What is certain ------------------------------------------------------------------------------------


def certain_on(cohort: Cohort) -> Iterable[ClientVerdict]:
    """Verdicts on clients that broke an exact rule."""
    took_part = _took_part(cohort)
    odd, exploded = _own_odd(cohort.odd > 0, took_part, cohort.norm_ratio)
    is_zero = (cohort.norm == 0) & (cohort.odd == 0)  # of NaN alone nothing is left to measure, either
    nothing = ((cohort.norm_ratio < _NOTHING) | is_zero) & took_part & (cohort.samples != 0)  # none, and says so
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        typical = np.nanmedian(cohort.cos_last, axis=1, keepdims=True)
    copies = ((cohort.cos_last > _COPY) & ~(typical > _ALIKE)) | _sent_before(cohort)
    if copies.size and _MANY < copies.any(0).mean() < 1:  # then it is how this federation works
        copies[:] = False
    if nothing.size and nothing.any(0).mean() > _MANY:  # then only who never sends anything is odd
        nothing &= (nothing | ~took_part).all(0)
    for place in np.flatnonzero((exploded | odd | nothing | copies).any(0)).tolist():
        client = cohort.clients[place]
        for kind, broken, fewest in (("scaling", exploded, 1), ("nan", odd, 1), ("free-rider", nothing | copies, 2)):
            rounds = np.flatnonzero(broken[:, place])
            if len(rounds) >= min(fewest, max(took_part[:, place].sum(), 1)):
                first, last = rounds[0], rounds[-1]
                is_over = (took_part & (cohort.odd == 0) & ~broken)[last + 1 :, place].any()
                end = cohort.rounds[last] if is_over else None
                yield ClientVerdict(client, kind, 0.99, cohort.rounds[first], end, is_certain=True)
                break


def _sent_before(cohort: Cohort) -> Mask:
    """Updates that are the client's last one once more, number for number, where the others' change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        typical = np.nanmedian(cohort.cos_self, axis=1, keepdims=True)
    last, same = np.full(len(cohort.clients), np.nan), np.zeros(cohort.norm.shape, bool)
    for row, size in enumerate(cohort.norm):
        same[row] = np.abs(size - last) <= _EQUAL * last
        last = np.where(np.isfinite(size), size, last)
    return np.asarray(same & (cohort.cos_self > 1 - _EQUAL) & ~(typical > _ALIKE))


def _own_odd(odd: Mask, took_part: Mask, norm_ratio: Array) -> tuple[Mask, Mask]:
    """NaN that clients made themselves, and updates that made others have it.

    Once most have it, it has come from the global model. Where somebody's update was a hundred times as large as the
    others' in an earlier round, it has come from there: the global model was finite, but too large to train.
    """
    own, exploded = odd.copy(), np.zeros_like(odd)
    is_huge = np.nan_to_num(norm_ratio) > _HUGE
    for number in range(1, len(odd)):
        if odd[:number].any() and 2 * odd[number].sum() > took_part[number].sum():
            own[number] = False
        if odd[number].any() and is_huge[:number].any():
            begin = int(is_huge.any(1).argmax())  # who is huge after that may have begun with what they made
            if is_huge[begin].sum() <= max(1, len(is_huge[begin]) // 5):  # of more, nobody can say who began
                own[number] &= is_huge[begin]
                exploded[begin] = is_huge[begin]
            else:
                own[number] = False
    return own, exploded


# What is judged -------------------------------------------------------------------------------------


def _judged(cohort: Cohort, probability: float, in_company: float, broken: Collection[str]) -> Iterable[ClientVerdict]:
    if clients_per_round(cohort) < FEWEST_CLIENTS:
        return
    judge = load_judge()
    is_broken = np.array([client in broken for client in cohort.clients])
    looks = [_look(cohort.part(slice(*period)), judge, is_broken) for period in _periods(len(cohort))]
    best: dict[int, _Found] = {}
    for shares, traits in looks:
        for place in np.flatnonzero(1 - shares[:, 0] >= probability).tolist():
            if place not in best or shares[place, 0] < best[place][0][0]:
                best[place] = (shares[place], traits)
    if not best:
        return
    best = _shown(cohort, judge, best)
    if in_company < probability:
        best |= _shown(cohort, judge, _company_of(best, looks, probability, in_company))
    if not best:
        return
    chances = _chances(cohort, judge, np.array([place in best for place in range(len(cohort.clients))]) | is_broken)
    for place, (shares, traits) in best.items():
        kind = judge.kinds[_kind(shares)]
        first, last = _span(chances[:, place])
        source, target = (None, None)
        if kind == "label-flip" and traits.pair[place, 0] >= 0:
            target, source = (int(one) for one in traits.pair[place])  # labelled target, looks like source
            if is_alone_with(cohort, place, target):
                continue
        yield ClientVerdict(
            cohort.clients[place], kind, 1 - float(shares[0]), cohort.rounds[first],
            None if last >= len(cohort) - _PASSED else cohort.rounds[last], source, target,
        )  # fmt: skip


def chances_on(cohort: Cohort) -> tuple[Array, list[str]]:
    """For each client, the probability that it is faulty in the period in which that is largest, and the kind."""
    if clients_per_round(cohort) < FEWEST_CLIENTS:
        return np.zeros(len(cohort.clients)), ["unknown"] * len(cohort.clients)
    judge = load_judge()
    nobody = np.zeros(len(cohort.clients), bool)
    looks = np.array([_look(cohort.part(slice(*period)), judge, nobody)[0] for period in _periods(len(cohort))])
    shares = looks[looks[:, :, 0].argmin(0), np.arange(len(cohort.clients))]
    return 1 - shares[:, 0], [judge.kinds[_kind(one)] for one in shares]


def _look(period: Cohort, judge: Judge, is_broken: Mask) -> _Found:
    """The reviewers' word on a period; who took part too seldom counts as honest."""
    before, after = opinions_on(period, judge, is_broken)
    shares = judge.reviewed(signal_of(period, before, after))
    is_seen = np.isfinite(period.norm).sum(0) >= min(_FEWEST_ROUNDS, len(period))
    shares[~is_seen] = np.eye(shares.shape[1])[0]
    return shares, after.traits


def _kind(shares: Array) -> int:
    """The likeliest fault."""
    return 1 + int(shares[1:].argmax())


def _company_of(
    accused: Mapping[int, _Found], looks: list[_Found], probability: float,
    in_company: float,
) -> dict[int, _Found]:  # fmt: skip
    """Others who probably have the fault that somebody surely has, over the periods in which somebody surely has it.

    A first accusation must be sure, or else federations without any fault raise alarms. Once a fault is there, that is
    no longer at stake, and whoever more likely has it than not is accused. All those periods count together: in a long
    run everybody looks odd in one of them.
    """
    found: dict[int, _Found] = {}
    for fault in sorted({_kind(shares) for shares, _ in accused.values()}):
        sure = [place for place, (shares, _) in accused.items() if _kind(shares) == fault]
        during = [
            (shares, traits)
            for shares, traits in looks
            if any(1 - shares[place, 0] >= probability and _kind(shares[place]) == fault for place in sure)
        ]
        mean: Array = np.mean([shares for shares, _ in during], axis=0)
        for place in np.flatnonzero(1 - mean[:, 0] >= in_company).tolist():
            if place not in accused and _kind(mean[place]) == fault:
                found[place] = (mean[place], during[0][1])
    return found


def _shown(cohort: Cohort, judge: Judge, found: Mapping[int, _Found]) -> dict[int, _Found]:
    shared = shared_labels(cohort)
    return {place: one for place, one in found.items() if _is_shown(cohort, place, judge.kinds[_kind(one[0])], shared)}


def _is_shown(cohort: Cohort, place: int, kind: str, shared: Array) -> bool:
    """Whether a client stands out plainly, and has data as others have, where the judge knows no such federations.

    `shared` is what clients have in common with others, by `shared_labels`. Where that is little, a client
    differs from the others because its data are others, and what is usual for its labels only it can say.
    """
    is_foreign = kind in OF_DATA and _is_little(shared)
    if is_foreign and shared[place] < _LEAST_SHARED:
        return False
    if clients_per_round(cohort) < min(_FEW_CLIENTS, len(cohort.clients)) and not _stands_out(cohort, place, _PLAIN):
        return False
    is_guessed = kind == _OF_INPUTS and (is_foreign or not np.isfinite(cohort.input_cos).any())
    return not is_guessed or _stands_out(cohort, place, ("entry_loss",))


def _stands_out(cohort: Cohort, place: int, names: Iterable[str]) -> bool:
    """Whether a client is far from all others in one of these plain numbers, over all its rounds; in a loss, above.

    Asked where few of many clients meet in a round: whom a client is compared with then changes from round to round,
    and so does what is typical. And, of the loss that the incoming model has with its data, where a fault of the
    inputs is named that nobody saw: a client whose updates alone are unlike the others' has few or other samples.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing are NaN
        for name in names:
            values = getattr(cohort, name)
            values = np.log(np.maximum(values, 1e-9)) if name in _OF_SIZE else values
            means = np.nanmean(values - np.nanmedian(values, axis=1, keepdims=True), axis=0)
            others = np.delete(means, place)
            middle = np.nanmedian(others)
            spread = 1.4826 * np.nanmedian(np.abs(others - middle))
            apart = means[place] - middle
            if (apart if name == "entry_loss" else abs(apart)) >= PLAIN_DEVIATIONS * max(spread, 1e-6):
                return True
    return False


def standing_apart(cohort: Cohort, clients: Collection[str]) -> dict[str, float]:
    """For each of these clients, how many times as far it is from the others' median as the second farthest of them.

    In the plain number in which that is most. The second farthest, so that two faulty clients do not hide each other.
    """
    most = dict.fromkeys(clients, 0.0)
    if not most:
        return most
    places = {client: cohort.clients.index(client) for client in clients}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing are NaN
        for name in _PLAIN:
            values = getattr(cohort, name)
            values = np.log(np.maximum(values, 1e-9)) if name in _OF_SIZE else values
            means = np.nanmean(values - np.nanmedian(values, axis=1, keepdims=True), axis=0)
            for client, place in places.items():
                others = np.delete(means, place)
                others = others[np.isfinite(others)]
                if np.isfinite(means[place]) and len(others) >= FEWEST_CLIENTS - 1:
                    middle = float(np.median(others))
                    far = float(np.sort(np.abs(others - middle))[-2])
                    most[client] = max(most[client], abs(float(means[place]) - middle) / max(far, 1e-6))
    return most


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
