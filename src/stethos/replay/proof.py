"""Proof of an accusation: the history again without the accused, and as a control without somebody else.

First the cheap way: each captured round is aggregated again from the updates that were recorded, which is exact for
that round. Then the rounds since the accusation are trained again, in several orders of the samples. Other accused
clients are left out on both sides, so that two guilty ones do not hide each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from stethos.errors import CaptureError
from stethos.replay.arm import Arm, ArmRunner, here
from stethos.replay.bisection import spread
from stethos.replay.effect import Array, ConfidenceInterval, Flags, beyond, difference, gains, noise_of, share_of
from stethos.replay.history import FederationHistory, RecordedRound
from stethos.replay.trainer import Labels, Trainer, aggregated, right_answers

Verdict = Literal["proved", "refuted", "undecided"]
Way = Literal["re-aggregation", "re-training"]
SEEDS = 3
MOST_SEEDS = 8
_CONTROLS = 8  # of a re-aggregation
_PER_SEED = 2  # controls of each seed, out of
_NEAREST = 6  # of the most similar weight
_STRICT = 1.4  # a proof needs an interval so many times as wide to be clear of nothing: looks after each seed add up
_MOST_ROUNDS = 20
_FEWEST_SAMPLES = 20  # of a class, to look at it alone


@dataclass(frozen=True, slots=True)
class Accusation:
    """Who is accused of what, since which round: one client, or several together.

    `others` are accused as well, and left out on both sides. `focus` is the class whose samples show the fault best,
    such as the one that was labelled wrongly.
    """

    clients: tuple[str, ...]
    kind: str = ""
    first: int = 1
    last: int | None = None
    others: tuple[str, ...] = ()
    focus: int | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """What came of it: accuracies with the accused, without it, and without a random other client.

    `excess` is the gain of leaving out the accused beyond that of leaving out another: the verdict rests on it.
    """

    verdict: Verdict
    way: Way
    clients: tuple[str, ...]
    before: ConfidenceInterval
    without: ConfidenceInterval
    gain: ConfidenceInterval
    control: ConfidenceInterval | None
    control_gain: ConfidenceInterval | None
    excess: ConfidenceInterval
    first: int
    last: int
    repetitions: int
    samples: int
    margin: float
    others: tuple[str, ...] = ()
    reason: str = ""
    measure: str = "accuracy"

    @property
    def words(self) -> str:
        """`without client 7: accuracy 0.81 -> 0.93 [0.92, 0.94]; without a random other client: 0.81 [0.79, 0.82]`."""
        who = f"client {self.clients[0]}" if len(self.clients) == 1 else f"clients {', '.join(self.clients)}"
        text = f"without {who}: {self.measure} {self.before.mean:.3f} -> {self.without}"
        if self.control is not None:
            other = "a random other client" if len(self.clients) == 1 else f"{len(self.clients)} random others"
            text += f"; without {other}: {self.control}"
        return text

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "words": self.words}


def prove_by_aggregation(
    trainer: Trainer, recorded: Sequence[RecordedRound], accusation: Accusation, labels: Labels | None = None
) -> Proof:
    """Aggregate the recorded rounds again without the accused; CaptureError if it sent nothing in them.

    `labels` are the true classes of the test's samples, to look at the class in focus alone.
    """
    accused, out = frozenset(accusation.clients), frozenset(accusation.others)
    rounds = [one for one in recorded if accused & set(one.clients) and one.is_sound and _in_range(one, accusation)]
    if not rounds:
        raise CaptureError(
            f"{' and '.join(accusation.clients)} sent no update in a captured round since round {accusation.first}",
            hint="its rounds were dropped, or were not captured with all updates",
        )
    rounds = [rounds[place] for place in spread(len(rounds), _MOST_ROUNDS)]
    always = set(rounds[0].clients).intersection(*(one.clients for one in rounds[1:]))
    weights = rounds[0].weights
    controls = controls_of({name: weights[name] for name in weights if name in always}, accusation, _CONTROLS)
    before: list[Flags] = []
    without: list[Flags] = []
    by_control: list[list[Flags]] = [[] for _ in controls]
    for one in rounds:
        before.append(right_answers(trainer, aggregated(trainer, one, out)))
        without.append(right_answers(trainer, aggregated(trainer, one, out | accused)))
        for found, other in zip(by_control, controls, strict=True):
            found.append(right_answers(trainer, aggregated(trainer, one, out | other)))
    span = rounds[0].number, rounds[-1].number
    return _judged("re-aggregation", accusation, labels, (before, without, by_control), span)


@dataclass(slots=True)
class Retraining:
    """Answers of models that were trained again, by seed and by who was left out; can be kept and taken up later.

    `done` maps "SEED CLIENT CLIENT ..." (those left out beside the others) to the answers.
    """

    first: int
    last: int
    done: dict[str, Flags] = field(default_factory=dict)


def prove_by_training(
    history: FederationHistory, trainer: Trainer, accusation: Accusation, progress: Retraining, *,
    weights: Mapping[str, float], labels: Labels | None = None, most_seeds: int = MOST_SEEDS,
    tell: Callable[[int, int, str], None] = lambda done, total, words: None,
    keep: Callable[[], None] = lambda: None, run_arms: ArmRunner | None = None,
) -> Proof:  # fmt: skip
    """Train the rounds since the accusation again without the accused, seed after seed, until it is decided.

    `weights` are those of all clients, `labels` the true classes of the test's samples. `tell` hears of trainings
    done and to do; `keep` is called after each, to save `progress`. `run_arms` trains elsewhere, several at once.
    """
    controls = controls_of(weights, accusation)
    nobody: frozenset[str] = frozenset()
    accused = frozenset(accusation.clients)
    before: list[Flags] = []
    without: list[Flags] = []
    by_control: list[list[Flags]] = [[] for _ in range(min(_PER_SEED, len(controls)))]
    arms_per_seed = 2 + len(by_control)
    total = arms_per_seed * min(SEEDS, most_seeds)
    run_arms = run_arms or here(history, trainer)

    def arms_of(seed: int) -> list[frozenset[str]]:
        chosen = [controls[(seed * _PER_SEED + place) % len(controls)] for place in range(len(by_control))]
        return [nobody, accused, *chosen]

    for seed in range(most_seeds):
        seeds = range(min(SEEDS, most_seeds)) if seed == 0 else (seed,)
        wanted = {
            Arm(progress.first, progress.last, out | frozenset(accusation.others), one): _key(one, out)
            for one in seeds
            for out in arms_of(one)
            if _key(one, out) not in progress.done
        }

        def say(arm: Arm, number: int, total: int = total) -> None:
            left_out = arm.without - frozenset(accusation.others)
            words = f"without {', '.join(sorted(left_out))}, round" if left_out else "as it was, round"
            tell(len(progress.done), total, f"{words} {number}")

        for arm, flags in run_arms(list(wanted), say):
            progress.done[wanted[arm]] = flags
            keep()
        for out, place in zip(arms_of(seed), (before, without, *by_control), strict=True):
            place.append(progress.done[_key(seed, out)])
        if seed + 1 >= min(SEEDS, most_seeds):
            made, span = (before, without, by_control), (progress.first, progress.last)
            proof = _judged("re-training", accusation, labels, made, span, is_last=seed + 1 == most_seeds)
            if proof.verdict != "undecided" or seed + 1 == most_seeds:
                return proof
            total = arms_per_seed * min(seed + 2, most_seeds)
    raise ValueError(f"most_seeds={most_seeds}: one at least")


def controls_of(weights: Mapping[str, float], accusation: Accusation, most: int = _NEAREST) -> list[frozenset[str]]:
    """Innocent clients to leave out instead, as many as are accused; those of the most similar weight first."""
    innocent = sorted(set(weights) - {*accusation.clients, *accusation.others})
    size = len(accusation.clients)
    if len(innocent) < size:
        return []
    wanted = sum(weights.get(name, 0.0) for name in accusation.clients)
    if size == 1:
        groups = [frozenset({name}) for name in innocent]
    else:
        chance = np.random.default_rng(0)
        drawn = [frozenset(chance.choice(innocent, size, replace=False).tolist()) for _ in range(200)]
        groups = list(dict.fromkeys(drawn))
    groups.sort(key=lambda group: (abs(sum(weights[name] for name in group) - wanted), sorted(group)))
    return groups[:most]


def _key(seed: int, left_out: frozenset[str]) -> str:
    return " ".join([str(seed), *sorted(left_out)])


Answers = tuple[Sequence[Flags], Sequence[Flags], Sequence[Sequence[Flags]]]


def _judged(
    way: Way, accusation: Accusation, labels: Labels | None, made: Answers, rounds: tuple[int, int], *,
    is_last: bool = False,
) -> Proof:  # fmt: skip
    """The verdict on all samples of the test; if that proves nothing, on those of the class in focus."""
    whole = _weighed(way, accusation, made, rounds, "accuracy", is_last=is_last)
    chosen = np.zeros(0, bool)
    if labels is not None and accusation.focus is not None:
        chosen = labels == accusation.focus
    if whole.verdict == "proved" or chosen.sum() < _FEWEST_SAMPLES:
        return whole
    before, without, controls = made
    part = (
        [one[chosen] for one in before],
        [one[chosen] for one in without],
        [[one[chosen] for one in control] for control in controls],
    )
    measure = f"accuracy on class {accusation.focus}"
    narrow = _weighed(way, accusation, part, rounds, measure, is_last=is_last)
    return whole if narrow.verdict == "refuted" and whole.verdict == "refuted" else narrow


def _weighed(
    way: Way, accusation: Accusation, made: Answers, rounds: tuple[int, int], measure: str, *, is_last: bool
) -> Proof:
    before, without, controls = made
    margin = noise_of(without)
    own = gains(before, without)
    gain = excess = difference(own)
    control = control_gain = None
    if controls:
        by_place = [np.mean([one[place].astype(float) for one in controls], axis=0) for place in range(len(before))]
        control = difference(by_place)
        spared = [mean - old.astype(float) for mean, old in zip(by_place, before, strict=True)]
        control_gain = difference(spared)
        excess = difference([mine - others for mine, others in zip(own, spared, strict=True)])
    verdict: Verdict = "undecided"
    can_refute = way == "re-training"
    if can_refute:
        is_proved = _is_clear(excess) or (_is_clear(gain) and _is_first(own, before, controls))
    else:
        is_proved = _is_clear(excess) and _is_beyond(own, before, controls)
    if gain.mean > 0 and is_proved:
        verdict, reason = "proved", "leaving it out helps, and more than leaving out another client"
    elif can_refute and excess.high < margin:
        verdict, reason = "refuted", f"leaving it out gains no more than leaving out another (within {margin:.3f})"
    elif can_refute and is_last and gain.high < margin:  # other clients differ too much from each other to compare
        verdict, reason = "refuted", f"leaving it out gains less than the test can show ({margin:.3f})"
    elif not can_refute:
        reason = "single rounds do not decide it: what a client does adds up over rounds"
    else:
        reason = "the effect is within the noise of the test"
    return Proof(
        verdict, way, accusation.clients, share_of(before), share_of(without), gain, control, control_gain, excess,
        rounds[0], rounds[1], len(before), len(before[0]), margin, accusation.others, reason, measure,
    )  # fmt: skip


def _is_clear(interval: ConfidenceInterval) -> bool:
    return interval.mean - _STRICT * (interval.mean - interval.low) > 0


def _is_beyond(own: Sequence[Array], before: Sequence[Flags], controls: Sequence[Sequence[Flags]]) -> bool:
    """Whether the accused gains more than another client would by chance, as far as the controls tell.

    The rounds of a history are no repetitions: the same client's data help or harm in all of them. So the
    controls, not the rounds, say how much clients differ.
    """
    others = [float(np.mean([gain.mean() for gain in gains(before, one)])) for one in controls]
    mine = float(np.mean([gain.mean() for gain in own]))
    return bool(others) and mine > max(others) and mine > beyond(others)


def _is_first(own: Sequence[Array], before: Sequence[Flags], controls: Sequence[Sequence[Flags]]) -> bool:
    """Whether leaving out the accused gained more than leaving out any other did, in every repetition, three at least.

    If clients were alike that would happen by chance in at most one of 27 cases.
    """
    best = [
        max(float(gain.mean()) for gain in row) for row in zip(*(gains(before, one) for one in controls), strict=True)
    ]
    return len(best) >= SEEDS and all(float(mine.mean()) > other for mine, other in zip(own, best, strict=True))


def _in_range(one: RecordedRound, accusation: Accusation) -> bool:
    return one.number >= accusation.first and (accusation.last is None or one.number <= accusation.last)
