"""Arms of an experiment on a recorded federation: independent trainings that can run side by side, anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stethos.replay.counterfactual import trained_again
from stethos.replay.effect import Flags
from stethos.replay.history import FederationHistory
from stethos.replay.trainer import Trainer, right_answers


@dataclass(frozen=True, slots=True)
class Arm:
    """Rounds `first` to `last`, trained again without some clients; seed 0 repeats what was recorded."""

    first: int
    last: int
    without: frozenset[str] = frozenset()
    seed: int = 0


# Trains arms and yields each with its model's answers as it is done; the second argument hears of rounds.
ArmRunner = Callable[[Sequence[Arm], Callable[[Arm, int], None]], Iterator[tuple[Arm, Flags]]]


def answers_of(
    history: FederationHistory, trainer: Trainer, arm: Arm, tell: Callable[[int], None] = lambda number: None
) -> Flags:
    """Which samples of the test the arm's last model gets right."""
    state = trained_again(history, trainer, arm.first, arm.last, arm.without, arm.seed, tell)
    return right_answers(trainer, state)


def here(history: FederationHistory, trainer: Trainer) -> ArmRunner:
    """Trains arms in this process, one after the other."""

    def run(arms: Sequence[Arm], tell: Callable[[Arm, int], None]) -> Iterator[tuple[Arm, Flags]]:
        for arm in arms:
            yield arm, answers_of(history, trainer, arm, lambda number, arm=arm: tell(arm, number))  # type: ignore[misc]

    return run
