"""Bisection: the first round that made the model worse, and the fewest clients without whom it is not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stethos.replay.arm import Arm, ArmRunner, answers_of
from stethos.replay.effect import ConfidenceInterval, Flags, difference, noise_of
from stethos.replay.history import FederationHistory, RecordedRound, State, is_finite
from stethos.replay.trainer import Trainer, aggregated, right_answers

Item = TypeVar("Item")
Array = npt.NDArray[Any]
Ahead = Callable[[Sequence[Sequence[str]]], None]
_RANKED = 8  # rounds, to rank clients


@dataclass(frozen=True, slots=True)
class BadRound:
    """The first round after which the model was clearly worse than the best one before, and stayed so."""

    number: int
    good: int
    before: float
    after: float
    loss: ConfidenceInterval


@dataclass(frozen=True, slots=True)
class GuiltySet:
    """The fewest clients found without whom the rounds give a good model; `trials` is how many sets were tried."""

    clients: tuple[str, ...]
    way: str
    accuracy: float
    without: float
    trials: int


def accuracies_of(history: FederationHistory, trainer: Trainer) -> list[tuple[int, Flags]]:
    """The answers of every captured global model, by the round that made it; the first is the one it began with."""
    first = (
        [(history.rounds[0] - 1, _right(trainer, history.global_state(history.rounds[0])))] if history.rounds else []
    )
    return first + [(number, _right(trainer, history.global_state(number, "after"))) for number in history.rounds]


def _right(trainer: Trainer, state: State) -> Flags:
    """Which answers are right; none where a model is not finite, whatever its largest score seems to be."""
    flags = right_answers(trainer, state)
    return flags if is_finite(state) else np.zeros_like(flags)


def first_bad_round(answers: Sequence[tuple[int, Flags]]) -> BadRound | None:
    """Each model against the best before it, on the same samples; None if none is clearly worse for good."""
    best, best_flags = answers[0] if answers else (0, np.zeros(0, bool))
    for place, (number, flags) in enumerate(answers[1:], start=1):
        lost = difference([best_flags.astype(float) - flags.astype(float)])
        later = [one.mean() for _, one in answers[place : place + 3]]
        if lost.low > 0 and lost.mean > noise_of([best_flags]) and np.median(later) < best_flags.mean() - lost.mean / 2:
            return BadRound(number, best, float(best_flags.mean()), float(flags.mean()), lost)
        if flags.mean() >= best_flags.mean():
            best, best_flags = number, flags
    return None


def guilty_set(
    history: FederationHistory, trainer: Trainer, rounds: Sequence[RecordedRound], bad: int | None, *,
    tell: Callable[[int, str], None] = lambda trial, words: None, run_arms: ArmRunner | None = None,
) -> GuiltySet | None:  # fmt: skip
    """Delta debugging over clients: of the bad round from its updates, or by training on from it.

    Without a bad round the whole history is trained again. Clients are ranked by how much
    better single rounds do without them; of the first one, two, four, ... the first set that helps is made smaller
    until nobody in it can be spared. None if no half of the clients does. `run_arms` trains elsewhere, several sets at
    once; the result and its `trials` are the same.
    """
    trials = 0
    known: dict[frozenset[str], float] = {}
    sound = [one for one in rounds if one.is_sound and (bad is None or one.number == bad)]
    if not sound:
        return None
    sound = [sound[place] for place in spread(len(sound), _RANKED)]
    start = sound[0]

    def by_aggregation(out: frozenset[str]) -> float:
        nonlocal trials
        trials += 1
        return float(right_answers(trainer, aggregated(trainer, start, out)).mean())

    def by_training(out: frozenset[str]) -> float:
        nonlocal trials
        trials += 1
        tell(trials, f"without {', '.join(sorted(out)) or 'nobody'}")
        return known[out] if out in known else float(answers_of(history, trainer, arm_of(out)).mean())

    def arm_of(out: frozenset[str]) -> Arm:
        return Arm(start.number if bad is not None else rounds[0].number, history.rounds[-1], out)

    def ahead(sets: Sequence[Sequence[str]]) -> None:
        """Train without each of these sets, all at once, before they are asked about one by one."""
        arms = [arm_of(out) for out in dict.fromkeys(map(frozenset, sets)) if out not in known]
        if run_arms is not None:
            for arm, flags in run_arms(arms, lambda arm, number: None):
                known[arm.without] = float(flags.mean())

    ranked = _ranked(trainer, sound)
    noise = noise_of([right_answers(trainer, aggregated(trainer, sound[-1]))])
    ways: list[tuple[str, Callable[[frozenset[str]], float], Ahead]] = []
    if bad is not None:
        ways.append(("re-aggregation", by_aggregation, _nothing_ahead))
    if trainer.can_train:
        ways.append(("re-training", by_training, ahead))
    for way, measure, prepare in ways:
        prepare([(), *(ranked[:size] for size in _sizes(len(ranked)))])
        accuracy = measure(frozenset())
        for size in _sizes(len(ranked)):
            without = measure(frozenset(ranked[:size]))
            if without - accuracy > noise:
                found = _smallest(ranked[:size], measure, accuracy + 0.6 * (without - accuracy), prepare)
                return GuiltySet(tuple(found), way, accuracy, measure(frozenset(found)), trials)
    return None


def _smallest(
    clients: Sequence[str], measure: Callable[[frozenset[str]], float], enough: float, prepare: Ahead
) -> list[str]:
    return fewest(clients, lambda out: measure(frozenset(out)) >= enough, prepare)


def _sizes(clients: int) -> list[int]:
    """1, 2, 4, ... up to half of the clients."""
    most = max(1, clients // 2)
    return sorted({min(2**power, most) for power in range(most.bit_length() + 1)})


def _ranked(trainer: Trainer, rounds: Sequence[RecordedRound]) -> list[str]:
    """Clients by how much better, on average, their rounds do without them."""
    gains: dict[str, list[float]] = {}
    for one in rounds:
        whole = right_answers(trainer, aggregated(trainer, one)).mean()
        for client in one.clients:
            without = right_answers(trainer, aggregated(trainer, one, frozenset({client}))).mean()
            gains.setdefault(client, []).append(float(without - whole))
    return sorted(gains, key=lambda client: -float(np.mean(gains[client])))


def spread(count: int, most: int) -> list[int]:
    """At most so many places of a list, evenly from the first to the last."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()))


def _nothing_ahead(sets: object) -> None:
    pass


def fewest(
    items: Sequence[Item], is_enough: Callable[[Sequence[Item]], bool],
    prepare: Callable[[Sequence[Sequence[Item]]], None] = _nothing_ahead,
) -> list[Item]:  # fmt: skip
    """A subset that is enough and of which no item can be spared (Zeller's ddmin). All of them must be enough.

    `prepare` hears of the subsets that may be asked about next.
    """
    left = list(items)
    parts = 2
    while len(left) > 1:
        cuts = [round(place * len(left) / parts) for place in range(parts + 1)]
        chunks = [left[start:end] for start, end in itertools.pairwise(cuts) if end > start]
        prepare([*chunks, *(_without(chunks, place) for place in range(len(chunks)) if len(chunks) > 2)])
        for place, chunk in enumerate(chunks):
            if is_enough(chunk):
                left, parts = chunk, 2
                break
            rest = _without(chunks, place)
            if len(chunks) > 2 and is_enough(rest):
                left, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(left):
                break
            parts = min(2 * parts, len(left))
    return left


def _without(chunks: Sequence[Sequence[Item]], place: int) -> list[Item]:
    return [item for number, chunk in enumerate(chunks) if number != place for item in chunk]
