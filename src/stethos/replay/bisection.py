"""Bisection: the first round that made the model worse, and the fewest clients without whom it is not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stethos.replay.effect import Interval, difference, noise_of
from stethos.replay.past import Flags, History, State, Turnout, World

Item = TypeVar("Item")
Array = npt.NDArray[Any]
_RANKED = 8  # rounds, to rank clients


@dataclass(frozen=True, slots=True)
class BadRound:
    """The first round after which the model was clearly worse than the best one before, and stayed so."""

    number: int
    good: int
    before: float
    after: float
    loss: Interval


@dataclass(frozen=True, slots=True)
class GuiltySet:
    """The fewest clients found without whom the rounds give a good model; `trials` is how many sets were tried."""

    clients: tuple[str, ...]
    way: str
    accuracy: float
    without: float
    trials: int


def accuracies_of(history: History, world: World) -> list[tuple[int, Flags]]:
    """The answers of every captured global model, by the round that made it; the first is the one it began with."""
    first = [(history.rounds[0] - 1, _right(world, history.global_state(history.rounds[0])))] if history.rounds else []
    return first + [(number, _right(world, history.global_state(number, "after"))) for number in history.rounds]


def _right(world: World, state: State) -> Flags:
    """Which answers are right; none where a model is not finite, whatever its largest score seems to be."""
    flags = world.right(state)
    is_finite = all(bool(value.isfinite().all()) for value in state.values() if value.is_floating_point())
    return flags if is_finite else np.zeros_like(flags)


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
    world: World, turnouts: Sequence[Turnout], bad: int | None, last: int, *,
    tell: Callable[[int, str], None] = lambda trial, words: None,
) -> GuiltySet | None:  # fmt: skip
    """Delta debugging over clients: of the bad round from its updates, or by training on from it.

    Without a bad round the whole history is trained again. Clients are ranked by how much
    better single rounds do without them; of the first one, two, four, ... the first set that mends it is made smaller
    until nobody in it can be spared. None if no half of the clients mends it.
    """
    trials = 0
    rounds = [one for one in turnouts if one.is_sound and (bad is None or one.number == bad)]
    if not rounds:
        return None
    rounds = [rounds[place] for place in _spread(len(rounds), _RANKED)]
    start = rounds[0]

    def by_aggregation(out: frozenset[str]) -> float:
        nonlocal trials
        trials += 1
        return float(world.right(start.combined(world, out)).mean())

    def by_training(out: frozenset[str]) -> float:
        nonlocal trials
        trials += 1
        tell(trials, f"without {', '.join(sorted(out)) or 'nobody'}")
        first = start.number if bad is not None else turnouts[0].number
        state = world.trained(first, last, out, 0, lambda number: None)
        return float(world.right(state).mean()) if state is not None else float("nan")

    ranked = _ranked(world, rounds)
    noise = noise_of([world.right(rounds[-1].combined(world))])
    ways: list[tuple[str, Callable[[frozenset[str]], float]]] = [("re-training", by_training)]
    if bad is not None:
        ways.insert(0, ("re-aggregation", by_aggregation))
    for way, measure in ways:
        accuracy = measure(frozenset())
        for size in _sizes(len(ranked)):
            without = measure(frozenset(ranked[:size]))
            if without - accuracy > noise:
                found = _smallest(ranked[:size], measure, accuracy + 0.6 * (without - accuracy))
                return GuiltySet(tuple(found), way, accuracy, measure(frozenset(found)), trials)
    return None


def _smallest(clients: Sequence[str], measure: Callable[[frozenset[str]], float], enough: float) -> list[str]:
    return fewest(clients, lambda out: measure(frozenset(out)) >= enough)


def _sizes(clients: int) -> list[int]:
    """1, 2, 4, ... up to half of the clients."""
    most = max(1, clients // 2)
    return sorted({min(2**power, most) for power in range(most.bit_length() + 1)})


def _ranked(world: World, rounds: Sequence[Turnout]) -> list[str]:
    """Clients by how much better, on average, their rounds do without them."""
    gains: dict[str, list[float]] = {}
    for one in rounds:
        whole = world.right(one.combined(world)).mean()
        for client in one.clients:
            better = world.right(one.combined(world, frozenset({client}))).mean() - whole
            gains.setdefault(client, []).append(float(better))
    return sorted(gains, key=lambda client: -float(np.mean(gains[client])))


def _spread(count: int, most: int) -> list[int]:
    return sorted(set(np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()))


def fewest(items: Sequence[Item], is_enough: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """A subset that is enough and of which no item can be spared (Zeller's ddmin). All of them must be enough."""
    left = list(items)
    parts = 2
    while len(left) > 1:
        cuts = [round(place * len(left) / parts) for place in range(parts + 1)]
        chunks = [left[start:end] for start, end in itertools.pairwise(cuts) if end > start]
        for place, chunk in enumerate(chunks):
            if is_enough(chunk):
                left, parts = chunk, 2
                break
            rest = [item for number, other in enumerate(chunks) if number != place for item in other]
            if len(chunks) > 2 and is_enough(rest):
                left, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(left):
                break
            parts = min(2 * parts, len(left))
    return left
